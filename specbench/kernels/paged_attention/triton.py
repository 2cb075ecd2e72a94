"""Paged attention in Triton, with the functions of `reference.py` over it."""

import torch
from torch import Tensor

from specbench.kernels.paged_attention.launch import power_of_2
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.paged_attention.triton_scores import write_kernel
from specbench.kernels.paged_attention.workspace import PagedAttention

__all__ = ["PagedAttention", "collect_scores", "log_sum_exp", "paged_attention", "write_kv"]


def write_kv(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store keys or values at their slots, as `reference.write_kv`; -1 writes nothing at all."""
    rows, queries, heads, head_dim = values.shape
    write_kernel[(queries, rows)](
        cache,
        values,
        slots,
        cache.stride(),
        values.stride(),
        slots.stride(),
        HEADS=heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.shape[1],
        PADDED_H=power_of_2(heads),
        PADDED_D=power_of_2(head_dim),
        num_warps=1,
    )


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    scale: float,
) -> Tensor:
    """`reference.paged_attention` with a workspace made for this call."""
    attention = _for(q, k_cache, block_table)
    return attention(q, k_cache, v_cache, block_table, kv_lens, q_lens, scale)


def log_sum_exp(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    scale: float,
) -> Tensor:
    """`reference.log_sum_exp` with a workspace made for this call."""
    lse = torch.empty(q.shape[:3], device=q.device)
    attention = _for(q, k_cache, block_table)
    attention(q, k_cache, k_cache, block_table, kv_lens, q_lens, scale, lse=lse)
    return lse


def collect_scores(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    ranked: Tensor,
    scale: float,
    collect: Collect,
    scores: Tensor,
) -> None:
    """`reference.collect_scores` with a workspace made for this call."""
    position = torch.arange(scores.shape[2], device=scores.device)
    past = (position >= ranked[:, None]) & (q_lens[:, None] > 0)
    scores.masked_fill_(past[:, None], -torch.inf)
    attention = _for(q, k_cache, block_table, collect)
    attention(
        q,
        k_cache,
        k_cache,
        block_table,
        kv_lens,
        q_lens,
        scale,
        ranked=ranked,
        scores=scores,
    )


def _for(
    q: Tensor, k_cache: Tensor, block_table: Tensor, collect: Collect | None = None
) -> PagedAttention:
    """A workspace for queries `[R, Q, H, D]` over what the block table can hold."""
    rows, queries, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    max_len = block_table.shape[1] * page_size
    return PagedAttention(
        rows, queries, heads, kv_heads, head_dim, max_len, q.dtype, q.device, collect
    )
