"""The simplest attention that the model can be run with: one contiguous cache, no pages."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.model import Transformer
from specbench.engine.model_config import ModelConfig


class DenseAttention:
    """Causal attention over a preallocated cache `[layers, R, Hkv, max_len, D]`.

    `start` is the position of the next chunk's first token, the same for all rows; `feed` moves it.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, dtype: torch.dtype) -> None:
        shape = (config.num_layers, rows, config.num_kv_heads, max_len, config.head_dim)
        self.keys = torch.full(shape, float("nan"), dtype=dtype)
        self.values = torch.full(shape, float("nan"), dtype=dtype)
        self.group = config.num_heads // config.num_kv_heads
        self.start = 0

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        width, end = q.shape[1], self.start + q.shape[1]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.start : end] = k.transpose(1, 2)
        values[:, :, self.start : end] = v.transpose(1, 2)
        mask = None
        if width > 1:
            rows, columns = torch.arange(self.start, end), torch.arange(end)
            mask = columns <= rows[:, None]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys[:, :, :end], values[:, :, :end], mask, enable_gqa=True
        )
        return out.transpose(1, 2)


def feed(model: Transformer, attention: DenseAttention, tokens: Tensor) -> Tensor:
    """Logits `[R, Q, V]` of `tokens` `[R, Q]`, which follow what `attention` already holds."""
    positions = torch.arange(attention.start, attention.start + tokens.shape[1]).expand_as(tokens)
    hidden = model(tokens, positions, attention)
    attention.start += tokens.shape[1]
    return model.logits(hidden)


def logits(model: Transformer, tokens: Tensor, chunks: tuple[int, ...] = ()) -> Tensor:
    """Logits of whole rows `[R, Q]`, fed in chunks of the given sizes and then the rest."""
    rows, length = tokens.shape
    attention = DenseAttention(model.config, rows, length, model.dtype)
    parts = tokens.split((*chunks, length - sum(chunks)), dim=1)
    return torch.cat([feed(model, attention, part) for part in parts], dim=1)
