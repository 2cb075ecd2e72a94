"""Paged attention and its scores against dense fp64 attention with an explicit mask."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config import Queries, Share
from specbench.kernels.paged_attention.reference import (
    Collect,
    collect_scores,
    log_sum_exp,
    paged_attention,
    read_kv,
    write_kv,
)
from tests.support.paged import (
    DTYPES,
    Paged,
    assert_close,
    head_major,
    interleaved,
    paged,
    randn,
)

LENGTHS = (1, 15, 16, 17, 63, 100)
SCALE = 0.31


def dense(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `[m, H, D]` of the last m rows, and their logits `[H, m, n]`, -inf in the future."""
    (rows, heads, _), (length, kv_heads, _) = q.shape, keys.shape
    group = heads // kv_heads
    query = q.double().transpose(0, 1)
    k, v = (x.double().repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    visible = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
    out = F.scaled_dot_product_attention(query[None], k[None], v[None], visible, scale=SCALE)[0]
    logits = torch.einsum("hmd,hnd->hmn", query, k) * SCALE
    return out.transpose(0, 1), logits.masked_fill(~visible, -torch.inf)


def chunk(q_lens: list[int], heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Queries `[R, Q, H, D]` with NaN in the padding."""
    q = randn(7, len(q_lens), max(q_lens), heads, dim, dtype=dtype)
    for row, count in enumerate(q_lens):
        q[row, count:] = torch.nan
    return q


def attend(q: Tensor, kv: Paged, kv_lens: list[int], q_lens: list[int]) -> tuple[Tensor, Tensor]:
    """Outputs and their log-sum-exp."""
    lengths = torch.tensor(kv_lens), torch.tensor(q_lens)
    out = paged_attention(q, kv.k_cache, kv.v_cache, kv.block_table, *lengths, SCALE)
    return out, log_sum_exp(q, kv.k_cache, kv.block_table, *lengths, SCALE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3, 4, 7])
@pytest.mark.parametrize(
    "q_lens",
    [
        pytest.param([1, 1, 1, 1, 1, 1], id="decode"),
        pytest.param([1, 7, 3, 0, 5, 6], id="verify"),
        pytest.param(list(LENGTHS), id="prefill"),
    ],
)
def test_equals_dense_attention(q_lens: list[int], group: int, dtype: torch.dtype) -> None:
    kv = paged(LENGTHS, dtype=dtype)
    q = chunk(q_lens, 2 * group, 8, dtype)
    out, lse = attend(q, kv, list(LENGTHS), q_lens)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, count in enumerate(q_lens):
        if count:
            expected, logits = dense(q[row, :count], kv.keys[row], kv.values[row])
            assert_close(out[row, :count], expected, dtype)
            norm = logits.logsumexp(-1).transpose(0, 1)
            assert_close(lse[row, :count], norm, lse.dtype)
        assert (out[row, count:] == 0).all()
        assert (lse[row, count:] == -torch.inf).all()


@pytest.mark.parametrize("page_size", [1, 5, 32])
def test_page_size_is_read_from_the_cache(page_size: int) -> None:
    kv = paged(LENGTHS, page_size=page_size)
    q_lens = [1, 4, 4, 2, 3, 4]
    q = chunk(q_lens, 4, 8, torch.float64)
    out, _ = attend(q, kv, list(LENGTHS), q_lens)
    for row, count in enumerate(q_lens):
        expected, _ = dense(q[row, :count], kv.keys[row], kv.values[row])
        assert_close(out[row, :count], expected, torch.float64)


def test_a_cache_longer_than_the_request_is_not_read() -> None:
    """Entries past `kv_lens`, as rejected drafts leave them, have no say."""
    kv = paged((40, 40))
    q = chunk([2, 3], 4, 8, torch.float64)
    out, _ = attend(q, kv, [33, 17], [2, 3])
    for row, (length, count) in enumerate([(33, 2), (17, 3)]):
        expected, _ = dense(q[row, :count], kv.keys[row][:length], kv.values[row][:length])
        assert_close(out[row, :count], expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_logits_do_not_overflow(dtype: torch.dtype) -> None:
    kv = paged((33,), kv_heads=1, dtype=dtype)
    q = chunk([1], 1, 8, dtype) * 1e4
    out, lse = attend(q, kv, [33], [1])
    _, logits = dense(q[0], kv.keys[0], kv.values[0])
    assert logits.max() > 1000  # its exp is no number
    best = int(logits.argmax())
    torch.testing.assert_close(out[0, 0, 0], kv.values[0][best, 0])
    assert lse.isfinite().all()


def test_requests_do_not_see_each_other() -> None:
    kv = paged(LENGTHS)
    q_lens = [1, 2, 3, 3, 2, 3]
    q = chunk(q_lens, 4, 8, torch.float64)
    together, _ = attend(q, kv, list(LENGTHS), q_lens)
    for row, (length, count) in enumerate(zip(LENGTHS, q_lens, strict=True)):
        one = Paged(kv.k_cache, kv.v_cache, kv.block_table[row : row + 1], [], [])
        alone, _ = attend(q[row : row + 1], one, [length], [count])
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_strided_caches_are_read_in_place(layout: Callable[[Paged], Paged]) -> None:
    kv = layout(paged((17, 33)))
    q = chunk([2, 3], 4, 8, torch.float64)
    out, _ = attend(q, kv, [17, 33], [2, 3])
    for row, count in enumerate([2, 3]):
        expected, _ = dense(q[row, :count], kv.keys[row], kv.values[row])
        assert_close(out[row, :count], expected, torch.float64)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100])
def test_read_kv_follows_the_table(length: int) -> None:
    kv = paged((100,))
    assert torch.equal(read_kv(kv.k_cache, kv.block_table[0], length), kv.keys[0][:length])


def test_write_kv_stores_each_value_at_its_slot() -> None:
    cache = torch.full((5, 16, 2, 4), torch.nan)
    values = randn(3, 2, 3, 2, 4, dtype=torch.float32)
    slots = torch.tensor([[17, 79, -1], [-1, -1, 33]])
    write_kv(cache, values, slots)
    written = [(17, values[0, 0]), (79, values[0, 1]), (33, values[1, 2])]
    for slot, value in written:
        assert torch.equal(cache[slot // 16, slot % 16], value)
    # -1 may land in page 0, which nobody reads, and nowhere else
    untouched = torch.ones(5 * 16, dtype=torch.bool)
    untouched[[17, 33, 79]] = False
    untouched[:16] = False
    assert cache.view(80, 2, 4)[untouched].isnan().all()


def test_write_kv_reaches_the_cache_of_one_layer() -> None:
    layers = torch.zeros(3, 4, 16, 2, 4)
    values = torch.ones(1, 1, 2, 4)
    write_kv(layers[1], values, torch.tensor([[20]]))
    assert (layers[1, 1, 4] == 1).all()
    assert layers.sum() == values.sum()


@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_write_kv_takes_strided_caches(layout: Callable[[Paged], Paged]) -> None:
    kv = layout(paged((17,)))
    values = randn(3, 1, 2, 2, 8)
    write_kv(kv.v_cache, values, kv.slots(0, torch.tensor([[3, 16]])))
    entries = read_kv(kv.v_cache, kv.block_table[0], 17)
    assert torch.equal(entries[[3, 16]], values[0])
    assert torch.equal(read_kv(kv.k_cache, kv.block_table[0], 17), kv.keys[0])


@pytest.mark.parametrize(
    ("queries", "count", "rows"),
    [
        ("first+last", 7, [0, 6]),
        ("first+last", 2, [0, 1]),
        ("first+last", 1, [0]),
        ("last", 7, [6]),
        ("last", 1, [0]),
        ("all", 4, [0, 1, 2, 3]),
        ("all", 1, [0]),
    ],
)
def test_collected_rows(queries: Queries, count: int, rows: list[int]) -> None:
    assert Collect(queries=queries).rows(count) == rows


def test_as_many_last_rows_as_there_are() -> None:
    assert Collect(queries="last", last=3).rows(5) == [2, 3, 4]
    assert Collect(queries="last", last=9).rows(2) == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", ["head", "layer"])
@pytest.mark.parametrize("queries", ["first+last", "last", "all"])
@pytest.mark.parametrize("score", ["logit", "weight"])
@pytest.mark.parametrize("group", [1, 3])
def test_scores_equal_explicit_sums(
    group: int,
    score: Literal["logit", "weight"],
    queries: Queries,
    share: Share,
    dtype: torch.dtype,
) -> None:
    q_lens = [1, 7, 0, 2, 5, 6]
    ranked = [1, 9, 4, 0, 59, 64]
    kv = paged(LENGTHS, dtype=dtype)
    q = chunk(q_lens, 2 * group, 8, dtype)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    scores = torch.full((6, 2 if share == "head" else 1, 110), 5.0, dtype=compute)
    collect_scores(
        q,
        kv.k_cache,
        kv.block_table,
        torch.tensor(LENGTHS),
        torch.tensor(q_lens),
        torch.tensor(ranked),
        SCALE,
        Collect(score, queries, share),
        scores,
    )
    for row, (count, candidates) in enumerate(zip(q_lens, ranked, strict=True)):
        if count == 0:
            assert (scores[row] == 5).all()
            continue
        _, logits = dense(q[row, :count], kv.keys[row], kv.values[row])
        # a sum of logits is one of plain products: the scale does not change their order
        each = logits.softmax(-1) if score == "weight" else logits / SCALE
        rows = {"first+last": sorted({0, count - 1}), "last": [count - 1], "all": range(count)}
        voted = each[:, list(rows[queries]), :candidates].sum(1)
        expected = voted.view(2, group, candidates).sum(1)
        if share == "layer":
            expected = expected.sum(0, keepdim=True)
        assert_close(scores[row, :, :candidates], expected, compute)
        assert (scores[row, :, candidates:] == -torch.inf).all()


def test_weights_of_one_row_sum_to_the_heads() -> None:
    kv = paged((63,), dtype=torch.float32)
    q = chunk([3], 6, 8, torch.float32)
    scores = torch.zeros(1, 2, 63)
    collect = Collect("weight", "last", "head")
    lens, rows = torch.tensor([63]), torch.tensor([3])
    collect_scores(q, kv.k_cache, kv.block_table, lens, rows, lens, SCALE, collect, scores)
    torch.testing.assert_close(scores.sum(-1), torch.full((1, 2), 3.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_last_rows_add_up_across_chunks(dtype: torch.dtype) -> None:
    """The last 20 rows of a prompt, in one chunk or in three, rank what lies before them."""
    kv = paged((63,), dtype=dtype)
    q = chunk([63], 6, 8, dtype)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    totals = []
    for cuts in ([63], [45, 47, 63]):
        scores = torch.full((1, 2, 80), 5.0, dtype=compute)
        begin = 0
        for end in cuts:
            collect_scores(
                q[:, begin:end],
                kv.k_cache,
                kv.block_table,
                torch.tensor([end]),
                torch.tensor([end - begin]),
                torch.tensor([43]),
                SCALE,
                Collect("weight", "last", last=end - max(begin, 43), add=begin > 43),
                scores,
            )
            begin = end
        assert (scores[..., 43:] == -torch.inf).all()
        totals.append(scores[0, :, :43])
    _, logits = dense(q[0], kv.keys[0], kv.values[0])
    expected = logits.softmax(-1)[:, 43:, :43].sum(1).view(2, 3, 43).sum(1)
    for total in totals:
        assert_close(total, expected, compute)
