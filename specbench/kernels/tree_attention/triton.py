"""Tree attention in Triton: one pass of paged attention, the tree's mask on its last tiles."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.paged_attention.launch import power_of_2
from specbench.kernels.paged_attention.workspace import PagedAttention


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    mask: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`reference.tree_attention` with a workspace made for this call.

    An iteration makes a `PagedAttention` once and calls it with `tree_mask`.
    """
    rows, queries, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    max_len = block_table.shape[1] * page_size
    attention = PagedAttention(rows, queries, heads, kv_heads, head_dim, max_len, q.dtype, q.device)
    lse = torch.empty(q.shape[:3], device=q.device)
    out = attention(
        q, k_cache, v_cache, block_table, kv_lens, q_lens, scale, lse=lse, tree_mask=mask
    )
    return out, lse


def row_weights(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    mask: Tensor | None,
    scale: float,
    weights: Tensor,
    lse: Tensor,
) -> None:
    """`reference.row_weights` in one launch, once the log-sum-exps are known.

    Parameters
    ----------
    q, k_cache, block_table, kv_lens, q_lens, mask, scale
        As for the reference, in float16, bfloat16 or float32.
    weights : Tensor
        float32 `[R, Q, L]`, dense in L: entries at or past ``kv_lens[r]``, and rows at or past
        ``q_lens[r]``, are left as they were.
    lse : Tensor
        float32 `[R, Q, H]`, of every row's scaled logits.
    """
    requests, queries, heads, dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    block_q, block_n = 16, 32 if q.dtype == torch.float32 else 64
    grid = triton.cdiv(weights.shape[2], block_n), triton.cdiv(queries, block_q), requests
    _row_weights[grid](
        q,
        k_cache,
        block_table,
        kv_lens,
        q_lens,
        None if mask is None else mask.view(torch.uint8),
        lse,
        weights,
        scale,
        weights.shape[2],
        q.stride(),
        k_cache.stride(),
        block_table.stride(0),
        (0, 0, 0) if mask is None else mask.stride(),
        lse.stride(),
        weights.stride(),
        COLUMNS=0 if mask is None else mask.shape[2],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        DIM=dim,
        PAGE=page_size,
        BLOCK_Q=block_q,
        BLOCK_N=block_n,
        DIM_WIDTH=max(16, power_of_2(dim)),
    )


@triton.jit(do_not_specialize=["length"])
def _row_weights(
    q,
    k_cache,
    block_table,
    kv_lens,
    q_lens,
    mask,
    lse,
    weights,
    scale,
    length,
    q_stride,
    k_stride,
    table_stride,
    mask_stride,
    lse_stride,
    weights_stride,
    COLUMNS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
):
    """A tile of rows and entries of one request, summed over all heads."""
    LOG2E: tl.constexpr = 1.4426950408889634
    r = tl.program_id(2).to(tl.int64)
    rows = tl.load(q_lens + r).to(tl.int32)
    entries = tl.minimum(tl.load(kv_lens + r).to(tl.int32), length)
    first = tl.program_id(0) * BLOCK_N
    if (first < entries) & (tl.program_id(1) * BLOCK_Q < rows):
        row = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
        n = first + tl.arange(0, BLOCK_N)
        dim = tl.arange(0, DIM_WIDTH)
        there = n < entries
        page = tl.load(block_table + r * table_stride + n // PAGE, mask=there, other=0)
        place = page.to(tl.int64) * k_stride[0] + n % PAGE * k_stride[1]
        if COLUMNS == 0:
            seen = n[None, :] <= entries - rows + row[:, None]
        else:
            column = n - (entries - COLUMNS)
            own = (row < rows)[:, None] & (there & (column >= 0))[None, :]
            mask_at = r * mask_stride[0] + row[:, None] * mask_stride[1] + column[None, :]
            seen = (column < 0)[None, :] | (tl.load(mask + mask_at, mask=own, other=0) != 0)
        total = tl.zeros([BLOCK_Q, BLOCK_N], tl.float32)
        for h in tl.range(0, KV_HEADS, num_stages=1):
            keys = tl.load(
                k_cache + place[:, None] + h * k_stride[2] + dim[None, :] * k_stride[3],
                mask=there[:, None] & (dim < DIM)[None, :],
                other=0.0,
            )
            for g in tl.range(0, GROUP, num_stages=1):
                head = h * GROUP + g
                query = tl.load(
                    q
                    + r * q_stride[0]
                    + row[:, None] * q_stride[1]
                    + head * q_stride[2]
                    + dim[None, :] * q_stride[3],
                    mask=(row < rows)[:, None] & (dim < DIM)[None, :],
                    other=0.0,
                )
                norm_at = r * lse_stride[0] + row * lse_stride[1] + head * lse_stride[2]
                norm = tl.load(lse + norm_at, mask=row < rows, other=0.0)
                logits = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
                weight = tl.exp2((logits - norm[:, None]) * LOG2E)
                total += tl.where(seen, weight, 0.0)
        at = r * weights_stride[0] + row[:, None] * weights_stride[1] + n[None, :]
        kept = (row < rows)[:, None] & there[None, :]
        tl.store(weights + at, total / (KV_HEADS * GROUP), mask=kept)
