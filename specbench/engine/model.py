"""The decoder-only transformer of Llama, Qwen2 and Qwen3, with attention left to the caller."""

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.model_config import ModelConfig
from specbench.engine.rope import build_rope


class Attention(Protocol):
    """What the model calls in every layer. It owns the KV cache: it writes k and v and attends."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from `q` to the cache extended by `k` and `v`.

        Parameters
        ----------
        layer : int
            Index of the layer.
        q : Tensor
            ``[R, Q, H, D]``, after norm and RoPE.
        k, v : Tensor
            ``[R, Q, Hkv, D]``, k after norm and RoPE. All three may be strided views.

        Returns
        -------
        Tensor
            ``[R, Q, H, D]``.
        """
        ...


class Layer(nn.Module):
    """Weights of one decoder layer, with q, k, v and gate, up fused.

    Attributes
    ----------
    qkv : Parameter
        ``[(H + 2 Hkv) D, hidden]``: rows of q, then k, then v.
    gate_up : Parameter
        ``[2 inner, hidden]``: rows of gate, then up.
    qk_norm : Parameter or None
        ``[H + Hkv, D]``: the norm weight of the query heads, then of the key heads.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()

        def weight(*shape: int) -> nn.Parameter:
            return _weight(shape, dtype, device)

        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_rows, qk_heads = config.num_heads * dim, config.num_heads + config.num_kv_heads
        qkv_rows = (qk_heads + config.num_kv_heads) * dim
        self.attn_norm = weight(hidden)
        self.qkv = weight(qkv_rows, hidden)
        self.qkv_bias = weight(qkv_rows) if config.qkv_bias else None
        self.qk_norm = weight(qk_heads, dim) if config.qk_norm else None
        self.o = weight(hidden, q_rows)
        self.o_bias = weight(hidden) if config.o_bias else None
        self.mlp_norm = weight(hidden)
        self.gate_up = weight(2 * inner, hidden)
        self.gate_up_bias = weight(2 * inner) if config.mlp_bias else None
        self.down = weight(hidden, inner)
        self.down_bias = weight(hidden) if config.mlp_bias else None


class Transformer(nn.Module):
    """A decoder-only model for inference, its weights unset until a loader fills them.

    Parameters
    ----------
    config : ModelConfig
        The model's shape.
    max_len : int
        Positions of the RoPE tables; a position beyond them is an index error.
    dtype, device
        Of weights and activations.
    """

    cos: Tensor
    signed_sin: Tensor

    def __init__(
        self,
        config: ModelConfig,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.config = config
        self.max_len = max_len
        self.dtype = dtype
        shape = (config.vocab_size, config.hidden_size)
        self.embed = _weight(shape, dtype, device)
        self.layers = nn.ModuleList(Layer(config, dtype, device) for _ in range(config.num_layers))
        self.final_norm = _weight((config.hidden_size,), dtype, device)
        self.head = self.embed if config.tie_word_embeddings else _weight(shape, dtype, device)
        cos, sin = build_rope(config, max_len, device)
        # The minus of the rotation x·cos + swap(x)·sin, on the first half, is kept in the table.
        sin[:, : config.head_dim // 2].neg_()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("signed_sin", sin, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states after the final norm.

        Parameters
        ----------
        tokens, positions : Tensor
            ``[R, Q]`` int64.
        attention : Attention
            Called once a layer.

        Returns
        -------
        Tensor
            ``[R, Q, hidden]`` in the model's dtype.
        """
        config = self.config
        rows, width = tokens.shape
        dim, heads = config.head_dim, config.num_heads
        qk_heads = heads + config.num_kv_heads
        eps, norm_shape = config.rms_norm_eps, (config.hidden_size,)
        flat = positions.reshape(-1)
        cos, sin = self.cos[flat].unsqueeze(1), self.signed_sin[flat].unsqueeze(1)
        x = F.embedding(tokens.reshape(-1), self.embed)
        for index, layer in enumerate(cast(list[Layer], self.layers)):
            h = F.rms_norm(x, norm_shape, layer.attn_norm, eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(rows * width, -1, dim)
            qk = qkv[:, :qk_heads]
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (dim,), None, eps) * layer.qk_norm
            # float32 tables promote half types, so that rotation happens in float32.
            qk = (qk * cos).addcmul_(qk.roll(dim // 2, -1), sin).to(self.dtype)
            qk = qk.view(rows, width, qk_heads, dim)
            v = qkv[:, qk_heads:].view(rows, width, -1, dim)
            out = attention(index, qk[:, :, :heads], qk[:, :, heads:], v)
            x += F.linear(out.reshape(rows * width, -1), layer.o, layer.o_bias)
            h = F.rms_norm(x, norm_shape, layer.mlp_norm, eps)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x += F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)
        x = F.rms_norm(x, norm_shape, self.final_norm, eps)
        return x.view(rows, width, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., vocab]`` of `hidden` ``[..., hidden]``; float32 for half types."""
        out = F.linear(hidden, self.head)
        return out.float() if self.dtype.itemsize < 4 else out


def _weight(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
