"""vLLM's weights as specbench's transformer: the same memory under the engine's own forward."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.hf_config import from_hf
from specbench.engine.model import Transformer
from specbench.engine.model_config import ModelConfig
from specbench.errors import UsageError


@dataclass(frozen=True)
class Shard:
    """This rank's part of a tensor-parallel model.

    Attributes
    ----------
    rank, size : int
        Of the tensor-parallel group.
    vocab_begin, vocab_end : int
        Rows of embedding and LM head that are here.
    """

    rank: int
    size: int
    vocab_begin: int
    vocab_end: int


def model_shape(vllm_config: Any) -> ModelConfig:
    """The whole model's shape.

    Raises
    ------
    SpecbenchError
        An architecture or a feature that the drafter does not have.
    """
    config = vllm_config.model_config
    return from_hf(config.hf_config.to_dict(), str(config.model))


def local_shape(shape: ModelConfig, size: int) -> ModelConfig:
    """One rank's part of it: heads and the MLP's width.

    Raises
    ------
    UsageError
        KV heads that ranks would have to share.
    """
    if shape.num_kv_heads % size or shape.intermediate_size % size:
        raise UsageError(
            f"{shape.name}: {shape.num_kv_heads} KV heads do not divide into {size} ranks; use a "
            "--tensor-parallel-size that divides them"
        )
    return replace(
        shape,
        num_heads=shape.num_heads // size,
        num_kv_heads=shape.num_kv_heads // size,
        intermediate_size=shape.intermediate_size // size,
    )


def view(model: Any, shape: ModelConfig, max_len: int, dtype: torch.dtype) -> Transformer:
    """A transformer whose weights are those of vLLM's `model`.

    Parameters
    ----------
    model : Module
        vLLM's Llama, Qwen2 or Qwen3, loaded.
    shape : ModelConfig
        This rank's; see `local_shape`.
    max_len : int
        Positions that drafts can have.
    dtype : torch.dtype
        Of the weights.

    Raises
    ------
    UsageError
        Weights that are absent, packed or of another shape.
    """
    inner: Any = getattr(model, "model", None)
    if not hasattr(inner, "layers"):
        raise UsageError(f"{type(model).__name__} is not built like Llama, Qwen2 or Qwen3 in vLLM")
    rotary = inner.layers[0].self_attn.rotary_emb
    device = rotary.cos_sin_cache.device
    ours = Transformer(shape, 1, dtype, "meta")
    ours.max_len = max_len
    ours.cos, ours.signed_sin = _tables(rotary, shape, max_len)

    def put(owner: nn.Module, name: str, weight: Tensor | None) -> None:
        expected = getattr(owner, name)
        if expected is None and weight is None:
            return
        if expected is None or weight is None or weight.shape != expected.shape:
            shapes = [None if x is None else tuple(x.shape) for x in (weight, expected)]
            raise UsageError(
                f"vLLM holds {name} as {shapes[0]}, expected {shapes[1]}: quantised or repacked "
                "weights cannot be read by the drafter (vLLM's CPU build repacks them)"
            )
        if weight.dtype != dtype or weight.device != device:
            raise UsageError(f"vLLM holds {name} in {weight.dtype} on {weight.device}")
        setattr(owner, name, nn.Parameter(weight.detach(), requires_grad=False))

    for mine, theirs in zip(ours.layers, inner.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        put(mine, "attn_norm", theirs.input_layernorm.weight)
        put(mine, "qkv", attention.qkv_proj.weight)
        put(mine, "qkv_bias", attention.qkv_proj.bias)
        put(mine, "qk_norm", _head_norms(attention, shape))
        put(mine, "o", attention.o_proj.weight)
        put(mine, "o_bias", attention.o_proj.bias)
        put(mine, "mlp_norm", theirs.post_attention_layernorm.weight)
        put(mine, "gate_up", mlp.gate_up_proj.weight)
        put(mine, "gate_up_bias", mlp.gate_up_proj.bias)
        put(mine, "down", mlp.down_proj.weight)
        put(mine, "down_bias", mlp.down_proj.bias)
    put(ours, "final_norm", inner.norm.weight)
    rows = len(inner.embed_tokens.weight)
    vocab = shape.vocab_size
    if rows < vocab:  # a part of it; the compute of several ranks knows which
        ours.embed = ours.head = nn.Parameter(torch.empty(rows, shape.hidden_size, device="meta"))
        vocab = rows
    put(ours, "embed", inner.embed_tokens.weight[:vocab])
    tied = shape.tie_word_embeddings
    put(ours, "head", ours.embed if tied else model.lm_head.weight[:vocab])
    return ours


def shard_of(model: Any, shape: ModelConfig, rank: int, size: int) -> Shard:
    """Which rows of the vocabulary this rank holds, its padding left out."""
    indices = getattr(model.model.embed_tokens, "shard_indices", None)
    if indices is None:
        return Shard(rank, size, 0, shape.vocab_size)
    return Shard(rank, size, indices.org_vocab_start_index, indices.org_vocab_end_index)


def _head_norms(attention: Any, shape: ModelConfig) -> Tensor | None:
    """Qwen3's norm weights, a row a head, as the kernels read them."""
    if not hasattr(attention, "q_norm"):
        return None
    q, k = attention.q_norm.weight, attention.k_norm.weight
    return torch.cat([q.expand(shape.num_heads, -1), k.expand(shape.num_kv_heads, -1)])


def _tables(rotary: Any, shape: ModelConfig, max_len: int) -> tuple[Tensor, Tensor]:
    """vLLM's own rotations, scaling and rounding included, in the engine's form `[max_len, D]`."""
    cache = rotary.cos_sin_cache
    if cache.shape[1] != shape.head_dim or not getattr(rotary, "is_neox_style", True):
        raise UsageError(
            f"{shape.name}: rotary embeddings of {cache.shape[1]} of {shape.head_dim} dimensions, "
            "or interleaved ones, are not supported"
        )
    if len(cache) < max_len:
        raise UsageError(f"{shape.name}: RoPE tables of {len(cache)} positions, of {max_len}")
    cos, sin = cache[:max_len].float().chunk(2, -1)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
