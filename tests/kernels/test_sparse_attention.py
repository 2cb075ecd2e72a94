"""Sparse attention against dense fp64 attention under a mask of the listed entries."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.kernels.paged_attention.reference import paged_attention
from specbench.kernels.sparse_attention.reference import sparse_attention
from tests.support.paged import (
    DTYPES,
    Paged,
    assert_close,
    head_major,
    interleaved,
    paged,
    randn,
)
from tests.support.sparse import choose, tail_pool

LENGTHS = (1, 15, 16, 17, 63, 100)
SCALE = 0.31


def dense(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """`[H, D]` of a query `[H, D]` where each KV head sees `[Hkv, n]`."""
    group = q.shape[0] // keys.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    mask = seen.repeat_interleave(group, dim=0)[:, None]
    query = q.double()[:, None]
    return F.scaled_dot_product_attention(query[None], k[None], v[None], mask, scale=SCALE)[0, :, 0]


def check(kv: Paged, q: Tensor, out: Tensor, seen: list[Tensor]) -> None:
    for row, mask in enumerate(seen):
        expected = dense(q[row, 0], kv.keys[row], kv.values[row], mask.expand(2, -1))
        assert_close(out[row, 0], expected, q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("group", [1, 3, 4, 7])
def test_equals_masked_dense_attention(group: int, sets: int, dtype: torch.dtype) -> None:
    kv = paged(LENGTHS, dtype=dtype)
    selected, tail, seen = choose(kv, sets, width=13, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 2 * group, 8, dtype=dtype)
    out = sparse_attention(q, kv.k_cache, kv.v_cache, selected, tail, SCALE)
    assert out.dtype == dtype
    assert out.shape == q.shape
    check(kv, q, out, seen)


@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_strided_caches_are_read_in_place(layout: Callable[[Paged], Paged]) -> None:
    kv = layout(paged(LENGTHS))
    selected, tail, seen = choose(kv, 2, width=13, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 6, 8)
    check(kv, q, sparse_attention(q, kv.k_cache, kv.v_cache, selected, tail, SCALE), seen)


@pytest.mark.parametrize("page_size", [1, 5, 32])
def test_page_size_is_read_from_the_cache(page_size: int) -> None:
    kv = paged(LENGTHS, page_size=page_size)
    selected, tail, seen = choose(kv, 2, width=13, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 6, 8)
    check(kv, q, sparse_attention(q, kv.k_cache, kv.v_cache, selected, tail, SCALE), seen)


def test_a_tail_in_a_pool_of_its_own_is_the_same_attention() -> None:
    kv = paged(LENGTHS)
    selected, tail, seen = choose(kv, 2, width=13, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 6, 8)
    pool, own_tail = tail_pool(kv, tail, page_size=5)
    # what the tail's slots name in the main cache is not read
    caches = [cache.clone() for cache in (kv.k_cache, kv.v_cache)]
    for cache in caches:
        cache.flatten(0, 1)[tail[tail >= 0]] = torch.nan
    check(kv, q, sparse_attention(q, *caches, selected, own_tail, SCALE, tail_caches=pool), seen)


@pytest.mark.parametrize("sets", [1, 2])
def test_every_entry_selected_is_full_attention(sets: int) -> None:
    kv = paged((63,))
    q = randn(5, 1, 1, 6, 8)
    slots = kv.slots(0, torch.arange(63))
    out = sparse_attention(
        q, kv.k_cache, kv.v_cache, slots[:60].expand(1, sets, -1), slots[None, 60:], SCALE
    )
    one = torch.tensor([1])
    full = paged_attention(
        q, kv.k_cache, kv.v_cache, kv.block_table, torch.tensor([63]), one, SCALE
    )
    assert_close(out, full, torch.float64)


def test_order_of_the_lists_is_free() -> None:
    kv = paged((63,))
    q = randn(5, 1, 1, 2, 8)
    slots = kv.slots(0, torch.arange(63))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    one, two = (
        sparse_attention(q, kv.k_cache, kv.v_cache, s[None, None], slots[None, 60:], SCALE)
        for s in (slots[:60], slots[:60][order])
    )
    assert_close(one, two, torch.float64)


@pytest.mark.parametrize(
    ("width", "tail_width"), [(0, 0), (4, 0), (0, 4), (4, 4)], ids=["none", "list", "tail", "both"]
)
@pytest.mark.parametrize("sets", [1, 2])
def test_empty_lists_give_zeros(sets: int, width: int, tail_width: int) -> None:
    kv = paged((15, 63))
    q = randn(5, 2, 1, 6, 8)
    selected = torch.full((2, sets, width), -1)
    tail = torch.full((2, tail_width), -1)
    assert (sparse_attention(q, kv.k_cache, kv.v_cache, selected, tail, SCALE) == 0).all()


def test_a_request_without_entries_leaves_the_others_alone() -> None:
    kv = paged(LENGTHS)
    selected, tail, seen = choose(kv, 2, width=13, tail_width=7)
    selected[3], tail[3] = -1, -1
    q = randn(5, len(LENGTHS), 1, 6, 8)
    q[3] = torch.nan
    out = sparse_attention(q, kv.k_cache, kv.v_cache, selected, tail, SCALE)
    assert (out[3] == 0).all()
    others = [0, 1, 2, 4, 5]
    for row in others:
        expected = dense(q[row, 0], kv.keys[row], kv.values[row], seen[row])
        assert_close(out[row, 0], expected, torch.float64)


def test_one_head_without_entries_is_zero_where_the_other_has_some() -> None:
    kv = paged((17,))
    selected = torch.full((1, 2, 3), -1)
    selected[0, 1] = kv.slots(0, torch.tensor([0, 9, 16]))
    q = randn(5, 1, 1, 4, 8)
    out = sparse_attention(q, kv.k_cache, kv.v_cache, selected, torch.full((1, 1), -1), SCALE)
    assert (out[0, 0, :2] == 0).all()
    mask = torch.zeros(2, 17, dtype=torch.bool)
    mask[:, [0, 9, 16]] = True
    expected = dense(q[0, 0], kv.keys[0], kv.values[0], mask)
    assert_close(out[0, 0, 2:], expected[2:], torch.float64)


def test_large_logits_do_not_overflow() -> None:
    kv = paged((33,), kv_heads=1, dtype=torch.float32)
    q = randn(5, 1, 1, 1, 8, dtype=torch.float32) * 1e4
    slots = kv.slots(0, torch.arange(33))
    out = sparse_attention(
        q, kv.k_cache, kv.v_cache, slots[None, None, :30], slots[None, 30:], SCALE
    )
    best = int((kv.keys[0][:, 0] @ q[0, 0, 0]).argmax())
    torch.testing.assert_close(out[0, 0, 0], kv.values[0][best, 0])
