"""Queries, keys and values of a verified batch, kept for the next drafts, in one Triton launch."""

import triton
import triton.language as tl
from torch import Tensor


def keep_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    votes: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> None:
    """As `reference.keep_rows`; the grid depends on shapes alone.

    Raises
    ------
    ValueError
        Pools of unequal strides, a place for fewer requests than there are, or heads that are not
        dense.
    """
    requests, capacity = len(starts) - 1, k_pool.shape[1]
    heads, dim = query.shape[1:]
    kv_heads = key.shape[1]
    if k_pool.stride() != v_pool.stride():
        raise ValueError(f"pools with strides {k_pool.stride()} and {v_pool.stride()}")
    if min(len(votes), len(k_pool)) < requests:
        raise ValueError(
            f"room for {min(len(votes), len(k_pool))} requests, the batch has {requests}"
        )
    dense = (query, key, value, votes, k_pool, v_pool)
    if any(x.stride(-1) != 1 for x in dense) or not votes[0, 0].is_contiguous():
        raise ValueError("heads must be dense")
    _keep_rows[(requests, capacity + 2)](
        query,
        key,
        value,
        starts,
        votes,
        k_pool,
        v_pool,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *votes.stride()[:2],
        *k_pool.stride()[:3],
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        CAPACITY=capacity,
        PADDED_H=triton.next_power_of_2(heads),
        PADDED_KV=triton.next_power_of_2(kv_heads),
        PADDED_D=triton.next_power_of_2(dim),
        num_warps=4,
    )


@triton.jit
def _keep_rows(
    query,
    key,
    value,
    starts,
    votes,
    k_pool,
    v_pool,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    votes_request,
    votes_row,
    pool_request,
    pool_entry,
    pool_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    CAPACITY: tl.constexpr,
    PADDED_H: tl.constexpr,
    PADDED_KV: tl.constexpr,
    PADDED_D: tl.constexpr,
):
    """Programs 0 and 1 of a request copy a query each, the others a draft's key and value."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    begin = tl.load(starts + request).to(tl.int64)
    end = tl.load(starts + request + 1).to(tl.int64)
    d = tl.arange(0, PADDED_D)[None, :]
    if part < 2:
        head = tl.arange(0, PADDED_H)[:, None]
        row = tl.where(part == 0, begin, end - 1)
        mask = (head < HEADS) & (d < DIM) & (end > begin)
        kept = tl.load(query + row * query_row + head * query_head + d, mask=mask)
        vote = votes + request * votes_request + part * votes_row + head * DIM + d
        tl.store(vote, kept, mask=mask)
    else:
        kv_head = tl.arange(0, PADDED_KV)[:, None]
        draft = begin + part - 1
        there = (kv_head < KV_HEADS) & (d < DIM) & (draft < end) & (end - begin <= CAPACITY + 1)
        at = request * pool_request + (part - 2) * pool_entry + kv_head * pool_head + d
        k = tl.load(key + draft * key_row + kv_head * key_head + d, mask=there)
        tl.store(k_pool + at, k, mask=there)
        v = tl.load(value + draft * value_row + kv_head * value_head + d, mask=there)
        tl.store(v_pool + at, v, mask=there)
