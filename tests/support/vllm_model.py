"""A model's weights as vLLM's modules hold them, whole or one rank's part."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.model import Transformer

# vLLM pads a vocabulary to a multiple of this
PADDING = 64


def vllm_model(model: Transformer, rank: int = 0, size: int = 1) -> Any:
    """What `VegasProposer.load_model` is given, as far as it looks."""
    c = model.config
    heads, kv_heads, dim = c.num_heads // size, c.num_kv_heads // size, c.head_dim

    def part(weight: Tensor, rows: int, axis: int = 0) -> Tensor:
        return weight.detach().narrow(axis, rank * rows, rows).contiguous()

    def holder(weight: Tensor | None, bias: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(weight=weight, bias=bias)

    layers = []
    for layer in model.layers:
        q, k, v = layer.qkv.split([n * dim for n in (c.num_heads, c.num_kv_heads, c.num_kv_heads)])
        gate, up = layer.gate_up.chunk(2)
        inner = c.intermediate_size // size
        kv = kv_heads * dim
        qkv = torch.cat([part(q, heads * dim), part(k, kv), part(v, kv)])
        bias = None
        if layer.qkv_bias is not None:
            parts = layer.qkv_bias.split([len(q), len(k), len(v)])
            widths = (heads * dim, kv, kv)
            bias = torch.cat([part(x, n) for x, n in zip(parts, widths, strict=True)])
        attention = SimpleNamespace(
            qkv_proj=holder(qkv, bias),
            o_proj=holder(part(layer.o, heads * dim, 1)),
            rotary_emb=SimpleNamespace(
                # cos and sin of half the dimensions, one beside the other
                cos_sin_cache=torch.cat(
                    [model.cos[:, : dim // 2], model.signed_sin[:, dim // 2 :]], -1
                ),
                is_neox_style=True,
            ),
        )
        if layer.qk_norm is not None:
            attention.q_norm = holder(layer.qk_norm[0])
            attention.k_norm = holder(layer.qk_norm[-1])
        layers.append(
            SimpleNamespace(
                self_attn=attention,
                mlp=SimpleNamespace(
                    gate_up_proj=holder(torch.cat([part(gate, inner), part(up, inner)])),
                    down_proj=holder(part(layer.down, inner, 1)),
                ),
                input_layernorm=holder(layer.attn_norm),
                post_attention_layernorm=holder(layer.mlp_norm),
            )
        )
    padded = -(-c.vocab_size // (PADDING * size)) * PADDING * size
    rows = padded // size
    tables = [F.pad(x, (0, 0, 0, padded - c.vocab_size)) for x in (model.embed, model.head)]
    embed, head = (holder(part(table, rows)) for table in tables)
    embed.shard_indices = SimpleNamespace(
        org_vocab_start_index=rank * rows,
        org_vocab_end_index=min((rank + 1) * rows, c.vocab_size),
    )
    inner_model = SimpleNamespace(layers=layers, norm=holder(model.final_norm), embed_tokens=embed)
    return SimpleNamespace(model=inner_model, lm_head=head)
