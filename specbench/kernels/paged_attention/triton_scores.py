"""Kernels around the attention pass: scores that it cannot finish, and the KV that it reads."""

import triton
import triton.language as tl

from specbench.kernels.paged_attention.triton_rows import collected_row

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def weigh_kernel(
    weights_ptr,
    peaks_ptr,
    lse_ptr,
    q_lens_ptr,
    ranked_ptr,
    scores_ptr,
    weights_stride,
    peaks_stride,
    lse_stride,
    scores_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WHICH: tl.constexpr,
    SLOTS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Scores from what a pass kept of each collected row, now that its log-sum-exp is known.

    In key tile t the pass kept w = exp2(z - peak[t]); the softmax weight is
    w * exp2(peak[t] - lse2). A program takes BLOCK_T tiles, of one KV head or of all (SHARED).
    """
    r = tl.program_id(2).to(tl.int64)
    rows = tl.load(q_lens_ptr + r).to(tl.int32)
    ranked = tl.where(rows > 0, tl.load(ranked_ptr + r).to(tl.int32), 0)
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = t[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    if tl.program_id(0) * BLOCK_T * BLOCK_N < ranked:
        for i in tl.range(0, KV_HEADS if SHARED else 1, num_stages=1):
            h = (tl.program_id(1) + i).to(tl.int64)
            weights_at = weights_ptr + r * weights_stride[0] + h * weights_stride[1]
            peaks_at = peaks_ptr + r * peaks_stride[0] + h * peaks_stride[1]
            for first in tl.range(0, SLOTS, BLOCK_C, num_stages=1):
                slot = first + tl.arange(0, BLOCK_C)
                row, counts = collected_row(slot // GROUP, rows, WHICH)
                counts = counts & (slot < SLOTS)
                head = h * GROUP + slot % GROUP
                at = r * lse_stride[0] + row * lse_stride[1] + head * lse_stride[2]
                lse2 = tl.load(lse_ptr + at, mask=counts, other=float("inf")) * LOG2E
                there = counts[None, :] & (t * BLOCK_N < ranked)[:, None]
                peak = tl.load(
                    peaks_at + t[:, None] * SLOTS + slot[None, :], mask=there, other=-float("inf")
                )
                kept = tl.load(
                    weights_at + (slot * weights_stride[2])[None, :, None] + n[:, None, :],
                    mask=there[:, :, None],
                    other=0.0,
                )
                factor = tl.exp2(peak - lse2[None, :])
                total += tl.sum(kept.to(tl.float32) * factor[:, :, None], 1)
    scores_ptr += r * scores_stride[0] + tl.program_id(1) * scores_stride[1]
    tl.store(scores_ptr + n, total, mask=n < ranked)


@triton.jit
def sum_heads_kernel(
    head_scores_ptr,
    q_lens_ptr,
    ranked_ptr,
    scores_ptr,
    head_stride,
    scores_stride,
    HEADS: tl.constexpr,
    TILES: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One score an entry from one a KV head, of all (SHARED) or one, and a tile of its rows."""
    r = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    candidate = (tl.load(q_lens_ptr + r) > 0) & (n < tl.load(ranked_ptr + r))
    total = tl.zeros([BLOCK], tl.float32)
    if not SHARED:
        head_scores_ptr += tl.program_id(2).to(tl.int64) * TILES * head_stride[1]
        scores_ptr += tl.program_id(2).to(tl.int64) * scores_stride[1]
    for plane in tl.static_range(HEADS * TILES):
        there = candidate
        if plane % TILES > 0:
            # a tile without rows has no scores
            there = there & (plane % TILES * BLOCK_M < tl.load(q_lens_ptr + r) * GROUP)
        at = head_scores_ptr + r * head_stride[0] + plane * head_stride[1] + n
        total += tl.load(at, mask=there, other=0.0)
    tl.store(scores_ptr + r * scores_stride[0] + n, total, mask=candidate)


@triton.jit
def write_kernel(
    cache_ptr,
    values_ptr,
    slots_ptr,
    cache_stride,
    values_stride,
    slots_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PADDED_H: tl.constexpr,
    PADDED_D: tl.constexpr,
):
    """A token's keys or values, of all heads, to its slot; to none where that is negative."""
    r = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0)
    slot = tl.load(slots_ptr + r * slots_stride[0] + i * slots_stride[1]).to(tl.int64)
    h = tl.arange(0, PADDED_H)[:, None]
    d = tl.arange(0, PADDED_D)[None, :]
    mask = (h < HEADS) & (d < HEAD_DIM) & (slot >= 0)
    at = r * values_stride[0] + i * values_stride[1]
    at += h * values_stride[2] + d * values_stride[3]
    value = tl.load(values_ptr + at, mask=mask, other=0.0)
    at = slot // PAGE_SIZE * cache_stride[0] + slot % PAGE_SIZE * cache_stride[1]
    at += h * cache_stride[2] + d * cache_stride[3]
    tl.store(cache_ptr + at, value, mask=mask)
