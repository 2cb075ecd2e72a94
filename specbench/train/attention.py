"""Attention over whole rows, as training needs it: the target's, and both of the draft's."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.forward import CachedAttention
from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.engine.model_config import ModelConfig


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of q `[B, L, H, D]` over k and v `[B, L, Hkv, D]`."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2)


class OneLayer(KVCache):
    """A cache whose layers are written one after the other into the same place."""

    def __init__(
        self, config: ModelConfig, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(replace(config, num_layers=1), pages_for(tokens), dtype, device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """The same for each."""
        return super().layer(0)


class TargetAttention(CachedAttention):
    """The target's attention over whole rows; keeps what its last layer would cache.

    Parameters
    ----------
    config : ModelConfig
    tokens : Tensor
        `[B, L]`.
    dtype : torch.dtype

    Attributes
    ----------
    keys, values : Tensor
        `[B, L, Hkv, D]` of the last layer that ran.
    """

    def __init__(self, config: ModelConfig, tokens: Tensor, dtype: torch.dtype) -> None:
        count, device = tokens.numel(), tokens.device
        cache = OneLayer(config, count, dtype, device)
        # page 0 is nobody's
        slots = torch.arange(PAGE_SIZE, PAGE_SIZE + count, device=device)
        super().__init__(cache, slots.view_as(tokens))
        self.last, self.scale = config.num_layers - 1, config.head_dim**-0.5
        self.keys, self.values = (
            x.flatten(0, 1)[PAGE_SIZE : PAGE_SIZE + count].unflatten(0, tokens.shape)
            for x in cache.layer(0)
        )

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Causal attention within each row."""
        if layer < self.last:
            return causal(q, self.keys, self.values, self.scale).contiguous()
        # what follows the last layer's KV reaches neither the draft nor the loss
        return torch.zeros_like(q)


def windowed(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
    """Causal attention over the last `window` tokens, the query's own included.

    A block of `window` queries sees no more than its own block of keys and the one before, so that
    time and memory grow with the length and no mask of the length's square is needed.

    Parameters
    ----------
    q : Tensor
        `[B, L, H, D]`.
    k, v : Tensor
        `[B, L, Hkv, D]`.
    window : int
    scale : float

    Returns
    -------
    Tensor
        `[B, L, H, D]`.
    """
    length = q.shape[1]
    first = causal(q[:, :window], k[:, :window], v[:, :window], scale)
    if length <= window:
        return first
    blocks = -(-length // window)
    groups = q.shape[2] // k.shape[2]
    # fused kernels take a mask or grouped heads, not both
    k, v = (x.repeat_interleave(groups, 2) for x in (k, v))
    padding = (0, 0, 0, 0, 0, blocks * window - length)
    q, k, v = (F.pad(x, padding).unflatten(1, (blocks, window)) for x in (q, k, v))
    k, v = (torch.cat([x[:, :-1], x[:, 1:]], 2) for x in (k, v))
    row = torch.arange(window, device=q.device)[:, None] + window
    distance = row - torch.arange(2 * window, device=q.device)
    out = F.scaled_dot_product_attention(
        q[:, 1:].flatten(0, 1).transpose(1, 2),
        k.flatten(0, 1).transpose(1, 2),
        v.flatten(0, 1).transpose(1, 2),
        attn_mask=(distance >= 0) & (distance < window),
        scale=scale,
    )
    rest = out.transpose(1, 2).unflatten(0, (-1, blocks - 1)).flatten(1, 2)
    return torch.cat([first, rest[:, : length - window]], 1)


def lagged(q: Tensor, k: Tensor, v: Tensor, lag: int, scale: float) -> Tensor:
    """Attention of query i over keys 0 to i - `lag`; zeros for the first `lag` queries.

    That is what a draft at depth `lag` sees of the target, whose KV ends before the last committed
    token. Source: flash noisy training, Yang et al., "LongSpec", arXiv 2502.17421.

    Parameters
    ----------
    q : Tensor
        `[B, L, H, D]`.
    k, v : Tensor
        `[B, L, Hkv, D]`.
    lag : int
        At least 1, less than L.
    scale : float

    Returns
    -------
    Tensor
        `[B, L, H, D]`.
    """
    length = q.shape[1]
    seen = causal(q[:, lag:], k[:, : length - lag], v[:, : length - lag], scale)
    return F.pad(seen, (0, 0, 0, 0, lag, 0))
