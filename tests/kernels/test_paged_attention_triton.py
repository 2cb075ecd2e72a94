"""Triton paged attention against the reference in fp64; interpreted where there is no GPU."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from specbench.config import Queries, Share
from specbench.kernels.paged_attention import reference
from specbench.kernels.paged_attention.reference import Collect
from tests.support.device import DEVICE
from tests.support.paged import Paged, head_major, interleaved, paged, randn

kernels = pytest.importorskip("specbench.kernels.paged_attention.triton", exc_type=ImportError)
launching = pytest.importorskip("specbench.kernels.paged_attention.launch")
multiprocessors = pytest.importorskip("specbench.kernels.launch").multiprocessors

LENGTHS = (1, 15, 16, 17, 63, 100)
VERIFY = (1, 7, 3, 0, 5, 6)
# requests of the tests of scores: their lengths, rows, and entries that are ranked
VOTED, VOTERS, RANKED = (1, 17, 15, 63, 100), (1, 7, 0, 2, 5), (1, 11, 4, 0, 95)
SCALE = 0.31
# 16-bit kernels round the weights too, before they meet the values
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def on_device(kv: Paged) -> Paged:
    """The same cache on the device of the tests."""
    if DEVICE == "cpu":
        return kv
    k, v, table = (x.to(DEVICE) for x in (kv.k_cache, kv.v_cache, kv.block_table))
    return Paged(k, v, table, kv.keys, kv.values)


def chunk(q_lens: tuple[int, ...], heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Queries `[R, Q, H, D]` with NaN in the padding."""
    q = randn(7, len(q_lens), max(q_lens), heads, dim, dtype=dtype)
    for row, count in enumerate(q_lens):
        q[row, count:] = torch.nan
    return q.to(DEVICE)


def lens(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def small(
    programs: int = 3,
    merge_bytes: int = 1 << 20,
    block_m: int = 32,
    block_n: int = 16,
    **more: Any,
) -> Any:
    """Small tiles and few programs, so that short contexts are split all the same."""
    processors = multiprocessors(DEVICE)
    each = max(1, programs // processors)
    return launching.Launch(
        block_m, block_n, stages=2, programs=each, min_tiles=1, merge_bytes=merge_bytes, **more
    )


def attention(q: Tensor, kv: Paged, max_len: int = 112, **kwargs: Any) -> Any:
    """A workspace for `q`, full of NaN."""
    made = kernels.PagedAttention(
        *q.shape[:3], kv.k_cache.shape[2], q.shape[3], max_len, q.dtype, DEVICE, **kwargs
    )
    for x in (made.partial, made.partial_lse, *made.collecting.tensors):
        x.fill_(torch.nan)
    return made


def attend(made: Any, q: Tensor, kv: Paged, *args: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, written over NaN."""
    out = torch.full_like(q, torch.nan)
    lse = torch.full(q.shape[:3], torch.nan, device=DEVICE)
    made(q, kv.k_cache, kv.v_cache, kv.block_table, *args, SCALE, out=out, lse=lse, **kwargs)
    return out, lse


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    near = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=near, atol=near)


def assert_is_reference(
    out: Tensor, lse: Tensor, q: Tensor, kv: Paged, kv_lens: Tensor, q_lens: Tensor
) -> None:
    """Equal to the reference on the same numbers in fp64, and so is the log-sum-exp."""
    k, v = kv.k_cache.double(), kv.v_cache.double()
    tail = kv.block_table, kv_lens, q_lens, SCALE
    assert_near(out, reference.paged_attention(q.double(), k, v, *tail), q.dtype)
    assert_near(lse, reference.log_sum_exp(q.double(), k, *tail), torch.float32)


@pytest.mark.parametrize(
    ("lengths", "q_lens", "group", "dim", "dtype"),
    [
        # each is a kernel to compile: other types where the rule or the tiles differ
        pytest.param(LENGTHS, (1, 1, 1, 1, 1, 1), 1, 16, torch.bfloat16, id="decode"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.bfloat16, id="verify"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.float16, id="verify, float16"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.float32, id="verify, float32"),
        pytest.param((70, 33), (7, 2), 4, 128, torch.bfloat16, id="32/8 heads"),
        pytest.param((41, 129), (9, 9), 7, 64, torch.bfloat16, id="14/2 heads"),
        pytest.param((50, 64), (20, 17), 7, 80, torch.float16, id="tile sets"),
        pytest.param((50, 64), (20, 17), 7, 80, torch.float32, id="tile sets, float32"),
        pytest.param((5, 20), (5, 20), 2, 96, torch.bfloat16, id="prefill"),
    ],
)
def test_equals_the_reference_with_the_default_launch(
    lengths: tuple[int, ...],
    q_lens: tuple[int, ...],
    group: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    kv = on_device(paged(lengths, dim=dim, dtype=dtype))
    q = chunk(q_lens, 2 * group, dim, dtype)
    made = attention(q, kv, max_len=144)
    out, lse = attend(made, q, kv, lens(*lengths), lens(*q_lens))
    assert_is_reference(out, lse, q, kv, lens(*lengths), lens(*q_lens))


@pytest.mark.parametrize("merge_bytes", [0, 1 << 20], ids=["two kernels", "one kernel"])
@pytest.mark.parametrize("programs", [1, 2, 5, 13])
def test_any_number_of_programs_gives_the_same(programs: int, merge_bytes: int) -> None:
    """Also when one workspace serves calls of other lengths: its counters are back at zero."""
    kv = on_device(paged((1, 17, 100), dtype=torch.float32))
    q = chunk((1, 3, 2), 6, 8, torch.float32)
    made = attention(q, kv, launch=small(programs, merge_bytes))
    assert made.fused == (merge_bytes > 0)
    for kv_lens, q_lens in [((1, 17, 100), (1, 3, 2)), ((1, 8, 40), (1, 0, 2))]:
        out, lse = attend(made, q, kv, lens(*kv_lens), lens(*q_lens))
        assert_is_reference(out, lse, q, kv, lens(*kv_lens), lens(*q_lens))
        assert (made.arrived == 0).all()


@pytest.mark.parametrize("merge_bytes", [0, 1 << 20], ids=["two kernels", "one kernel"])
def test_programs_divide_any_lengths(merge_bytes: int) -> None:
    """Those too that leave most of the programs nothing."""
    kv = on_device(paged((2400, 17, 1), dtype=torch.float32))
    q = chunk((3, 1, 1), 6, 8, torch.float32)
    how = small(7, merge_bytes)
    made = attention(q, kv, max_len=2400, launch=how)
    assert made.programs == how.programs * multiprocessors(DEVICE)
    for kv_lens in ((2400, 17, 1), (500, 9, 0), (20, 1, 1)):
        q_lens = tuple(min(n, rows) for n, rows in zip(kv_lens, (3, 1, 1), strict=True))
        out, lse = attend(made, q, kv, lens(*kv_lens), lens(*q_lens))
        assert_is_reference(out, lse, q, kv, lens(*kv_lens), lens(*q_lens))
        assert (made.arrived == 0).all()


@pytest.mark.parametrize(
    ("partials", "merge_bytes"), [("keep", 0), ("discard", 0), ("discard", 1 << 20)]
)
def test_more_rows_than_a_tile_holds_are_split_too(partials: str, merge_bytes: int) -> None:
    """Partial results that were dropped are written anew by the next call."""
    kv = on_device(paged((100, 37), dim=32, dtype=torch.float32))
    q = chunk((9, 5), 14, 32, torch.float32)
    made = attention(q, kv, launch=small(7, merge_bytes, partials=partials))
    assert made.jobs == 4
    for _ in range(2):
        out, lse = attend(made, q, kv, lens(100, 37), lens(9, 5))
        assert_is_reference(out, lse, q, kv, lens(100, 37), lens(9, 5))


@pytest.mark.parametrize("partials", ["", "discard"])
@pytest.mark.parametrize("merge_bytes", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_partial_results_may_have_the_type_of_queries(
    dtype: torch.dtype, merge_bytes: int, partials: str
) -> None:
    kv = on_device(paged((100, 37), dim=64, dtype=dtype))
    q = chunk((9, 5), 14, 64, dtype)
    made = attention(q, kv, launch=small(7, merge_bytes, partials=partials, narrow=True))
    assert made.partial.dtype == dtype
    for _ in range(2):
        out, lse = attend(made, q, kv, lens(100, 37), lens(9, 5))
        assert_is_reference(out, lse, q, kv, lens(100, 37), lens(9, 5))


def test_a_workspace_serves_fewer_requests_and_rows() -> None:
    kv = on_device(paged((100, 37), dtype=torch.float32))
    q = chunk((9, 5), 14, 8, torch.float32)
    collect = Collect("weight", "all")
    made = attention(q, kv, launch=small(programs=7), collect=collect)
    few, lengths = q[:1, 2:5].contiguous(), (lens(98), lens(3))
    scores = torch.zeros(1, 2, 112, device=DEVICE)
    expected = scores.double()
    out, lse = attend(made, few, kv, *lengths, ranked=lens(96), scores=scores)
    assert_is_reference(out, lse, few, kv, *lengths)
    tail = kv.block_table, *lengths, lens(96), SCALE, collect
    reference.collect_scores(few.double(), kv.k_cache.double(), *tail, expected)
    assert_near(scores[..., :96], expected[..., :96], torch.float32)


@pytest.mark.parametrize("page_size", [1, 5, 32])
def test_page_size_is_read_from_the_cache(page_size: int) -> None:
    kv = on_device(paged((63, 17), dtype=torch.float32, page_size=page_size))
    q = chunk((4, 3), 4, 8, torch.float32)
    out, lse = attend(attention(q, kv, launch=small()), q, kv, lens(63, 17), lens(4, 3))
    assert_is_reference(out, lse, q, kv, lens(63, 17), lens(4, 3))


@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_strided_caches_are_read_in_place(layout: Callable[[Paged], Paged]) -> None:
    kv = on_device(layout(paged((17, 33), dtype=torch.float16)))
    q = chunk((2, 3), 4, 8, torch.float16)
    # queries may be a slice of a wider projection
    wide = torch.cat([q, q], dim=2)[:, :, :4]
    out, lse = attend(attention(q, kv, launch=small()), wide, kv, lens(17, 33), lens(2, 3))
    assert_is_reference(out, lse, q, kv, lens(17, 33), lens(2, 3))


def test_entries_past_the_request_and_int32_tables() -> None:
    """Rejected drafts past `kv_lens` have no say; tables and lengths may be int32."""
    kv = on_device(paged((40, 40), dtype=torch.float32))
    q = chunk((2, 3), 4, 8, torch.float32)
    narrow = Paged(kv.k_cache, kv.v_cache, kv.block_table.int(), kv.keys, kv.values)
    lengths = lens(33, 17), lens(2, 3)
    out, lse = attend(attention(q, kv, launch=small()), q, narrow, *(x.int() for x in lengths))
    assert_is_reference(out, lse, q, kv, *lengths)


def test_large_logits_do_not_overflow() -> None:
    kv = on_device(paged((33,), kv_heads=1, dtype=torch.float32))
    q = chunk((1,), 1, 8, torch.float32) * 1e4
    out, lse = attend(attention(q, kv, launch=small()), q, kv, lens(33), lens(1))
    assert lse.isfinite().all()
    assert_is_reference(out, lse, q, kv, lens(33), lens(1))


@pytest.mark.parametrize("columns", [5, 16, 40])
def test_tree_mask(columns: int) -> None:
    """Whatever the mask hides of the last columns; one request is shorter than they are."""
    kv = on_device(paged((70, 21), dtype=torch.float32))
    q = chunk((5, 3), 6, 8, torch.float32)
    mask = randn(5, 2, 5, columns) > 0
    mask[:, :, -1] = True
    made = attention(q, kv, launch=small(programs=4))
    kv_lens, q_lens = lens(70, 21), lens(5, 3)
    out, lse = attend(made, q, kv, kv_lens, q_lens, tree_mask=mask.to(DEVICE))
    for row, (length, count) in enumerate([(70, 5), (21, 3)]):
        keys, values = (x[row].double().repeat_interleave(3, 1) for x in (kv.keys, kv.values))
        visible = torch.ones(count, length, dtype=torch.bool)
        last = min(columns, length)
        visible[:, length - last :] = mask[row, :count, columns - last :]
        logits = torch.einsum("mhd,nhd->mhn", q[row, :count].cpu().double(), keys) * SCALE
        logits = logits.masked_fill(~visible[:, None], -torch.inf)
        expected = torch.einsum("mhn,nhd->mhd", logits.softmax(-1), values)
        assert_near(out[row, :count].cpu(), expected, torch.float32)
        assert_near(lse[row, :count].cpu(), logits.logsumexp(-1), torch.float32)
        assert (out[row, count:] == 0).all()


@pytest.mark.parametrize("share", ["head", "layer"])
@pytest.mark.parametrize("queries", ["first+last", "last", "all"])
@pytest.mark.parametrize("score", ["logit", "weight"])
def test_scores_equal_the_reference(
    score: Literal["logit", "weight"], queries: Queries, share: Share
) -> None:
    kv = on_device(paged(VOTED, dtype=torch.float32))
    q = chunk(VOTERS, 6, 8, torch.float32)
    collect = Collect(score, queries, share)
    lengths = lens(*VOTED), lens(*VOTERS), lens(*RANKED)
    scores = torch.full((5, 2 if share == "head" else 1, 112), 5.0, device=DEVICE)
    expected = scores.double()
    how = small(programs=4, votes="turned" if queries == "last" else "probe", hold=2)
    made = attention(q, kv, launch=how, collect=collect)
    out, lse = attend(made, q, kv, *lengths[:2], ranked=lengths[2], scores=scores)
    assert_is_reference(out, lse, q, kv, *lengths[:2])
    reference.collect_scores(
        q.double(), kv.k_cache.double(), kv.block_table, *lengths, SCALE, collect, expected
    )
    past = expected == -torch.inf
    assert (scores[past] == 5).all()
    assert_near(scores.double().masked_fill(past, -torch.inf), expected, torch.float32)


@pytest.mark.parametrize("score", ["logit", "weight"])
def test_scores_under_a_mask_and_without_values(score: Literal["logit", "weight"]) -> None:
    kv = on_device(paged((70, 21, 3), dtype=torch.float32))
    q = chunk((2, 2, 1), 6, 8, torch.float32)
    mask = (torch.arange(5) < torch.tensor([[3], [5]])).expand(3, 2, 5).clone()
    lengths, collect = (lens(70, 21, 3), lens(2, 2, 1), lens(66, 18, 3)), Collect(score)
    scores = torch.full((3, 2, 80), 5.0, device=DEVICE)
    expected = scores.double()
    made = attention(q, kv, launch=small(programs=4), collect=collect)
    more = {"tree_mask": mask.to(DEVICE), "ranked": lengths[2], "scores": scores}
    out = made(q, kv.k_cache, None, kv.block_table, *lengths[:2], SCALE, **more)
    assert (out == 0).all()
    place = q.double(), kv.k_cache.double(), kv.block_table, *lengths
    reference.collect_scores(*place, SCALE, collect, expected, tree_mask=mask.to(DEVICE))
    past = expected == -torch.inf
    assert (scores[past] == 5).all()
    assert_near(scores.double().masked_fill(past, -torch.inf), expected, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", ["logit", "weight"])
def test_scores_of_16_bit_types(score: Literal["logit", "weight"], dtype: torch.dtype) -> None:
    """A summed query keeps its fp32 digits; weights have those of bfloat16."""
    kv = on_device(paged((100, 41), dim=64, dtype=dtype))
    q = chunk((9, 4), 14, 64, dtype)
    expected = torch.full((2, 2, 112), 5.0, dtype=torch.float64, device=DEVICE)
    scores = expected.float()
    tail = kv.block_table, lens(100, 41), lens(9, 4), lens(92, 38), SCALE, Collect(score)
    kernels.collect_scores(q, kv.k_cache, *tail, scores)
    reference.collect_scores(q.double(), kv.k_cache.double(), *tail, expected)
    near = 1e-4 if score == "logit" else 2**-8
    torch.testing.assert_close(scores.double(), expected, rtol=near, atol=near)


@pytest.mark.parametrize(
    ("queries", "share", "votes", "hold"),
    [
        ("first+last", "head", "weights", 1),
        ("first+last", "head", "probe", 2),
        ("first+last", "layer", "turned", 2),
        ("last", "head", "weights", 2),
        ("last", "layer", "probe", 1),
        ("all", "head", "weights", 4),
        ("all", "layer", "weights", 8),
        ("all", "head", "turned", 1),
    ],
)
def test_weights_in_one_pass(queries: Queries, share: Share, votes: str, hold: int) -> None:
    """Exact under the normaliser that is passed; this call's takes its place."""
    kv = on_device(paged(VOTED, dtype=torch.float32))
    q = chunk(VOTERS, 6, 8, torch.float32)
    collect = Collect("weight", queries, share)
    merge_bytes = 0 if queries == "first+last" else 1 << 20
    how = small(4, merge_bytes, votes=votes, hold=hold)
    made = attention(q, kv, launch=how, collect=collect, one_pass=True)
    norm = randn(9, 5, made.collecting.rows, 6, dtype=torch.float32).to(DEVICE)
    before = norm.clone()
    scores = torch.full((5, 2 if share == "head" else 1, 112), 5.0, device=DEVICE)
    lengths = lens(*VOTED), lens(*VOTERS)
    out, lse = attend(made, q, kv, *lengths, ranked=lens(*RANKED), scores=scores, norm=norm)
    assert_is_reference(out, lse, q, kv, *lengths)
    for row, (rows, ranked) in enumerate(zip(VOTERS, RANKED, strict=True)):
        if rows == 0:
            assert (scores[row] == 5).all()
            assert torch.equal(norm[row], before[row])
            continue
        chosen = collect.rows(rows)
        keys = kv.keys[row][:ranked].double().repeat_interleave(3, 1)
        logits = torch.einsum("chd,nhd->chn", q[row, chosen].cpu().double(), keys) * SCALE
        weights = (logits - before[row, : len(chosen), :, None].cpu()).exp()
        expected = weights.sum(0).unflatten(0, (2, 3)).sum(1)
        if share == "layer":
            expected = expected.sum(0, keepdim=True)
        assert_near(scores[row, :, :ranked].cpu(), expected, torch.float32)
        assert (scores[row, :, ranked:] == 5).all()
        again, own = before[row : row + 1].clone(), scores[row : row + 1].clone()
        reference.collect_scores(
            q[row : row + 1],
            kv.k_cache,
            kv.block_table[row : row + 1],
            *(x[row : row + 1] for x in (*lengths, lens(*RANKED))),
            SCALE,
            collect,
            own,
            again,
        )
        assert_near(own[0, :, :ranked].cpu(), expected, torch.float32)
        assert_near(norm[row].cpu(), again[0].cpu().double(), torch.float32)
        # a single row is both the first and the last
        replaced = [0, 0] if queries == "first+last" and rows == 1 else chosen
        assert torch.equal(norm[row, : len(replaced)], lse[row, replaced])


@pytest.mark.parametrize(
    ("rows", "group", "dtype", "kind", "queries", "share", "how"),
    [
        # the rule: a tile of 32 rows, of 64, and of 128
        (5, 4, torch.bfloat16, torch.bfloat16, "all", "head", None),
        (9, 4, torch.bfloat16, torch.float32, "all", "layer", None),
        (5, 7, torch.float16, torch.float32, "all", "head", None),
        (9, 7, torch.bfloat16, torch.bfloat16, "all", "head", None),
        (17, 7, torch.bfloat16, torch.bfloat16, "all", "head", None),
        # two, three and four tiles, of which a short request fills few
        (9, 7, torch.float32, torch.float32, "all", "head", None),
        (9, 4, torch.float32, torch.bfloat16, "all", "layer", small(7, 0, 16, hold=2)),
        (17, 7, torch.bfloat16, torch.float32, "all", "head", small(7, block_m=64, hold=4)),
        (17, 7, torch.bfloat16, torch.float32, "all", "head", small(4, block_m=32)),
        (9, 4, torch.float32, torch.float32, "first+last", "head", small(5, block_m=16)),
        (9, 4, torch.float32, torch.float32, "last", "layer", small(5, 0, block_m=16)),
    ],
)
def test_rows_of_any_number_vote_in_one_pass(
    rows: int,
    group: int,
    dtype: torch.dtype,
    kind: torch.dtype,
    queries: Queries,
    share: Share,
    how: Any,
) -> None:
    """Each row under its own normaliser, in tiles of any size, for scores of either type."""
    q_lens = rows, 1, 0, rows - 3
    lengths = lens(100, 17, 33, 70), lens(*q_lens), lens(101 - rows, 17, 9, 60)
    kv = on_device(paged((100, 17, 33, 70), dim=64, dtype=dtype))
    q, collect = chunk(q_lens, 2 * group, 64, dtype), Collect("weight", queries, share)
    made = attention(q, kv, launch=how, collect=collect, one_pass=True)
    place = q.double(), kv.k_cache.double(), kv.block_table
    sums = reference.log_sum_exp(*place, *lengths[:2], SCALE)
    norm = randn(4, 4, made.collecting.rows, 2 * group, dtype=torch.float32).to(DEVICE)
    for row, count in enumerate(q_lens):
        chosen = collect.rows(count)
        norm[row, : len(chosen)] += sums[row, chosen]
    scores = torch.full((4, 2 if share == "head" else 1, 112), 5.0, device=DEVICE, dtype=kind)
    expected, replaced = scores.double(), norm.double()
    more = {"ranked": lengths[2], "scores": scores, "norm": norm}
    attend(made, q, kv, *lengths[:2], **more)
    reference.collect_scores(*place, *lengths, SCALE, collect, expected, replaced)
    past = expected == -torch.inf
    assert (scores[past] == 5).all()
    near = 2**-7 if torch.bfloat16 in (dtype, kind) or dtype == torch.float16 else 2e-5
    found = scores.double().masked_fill(past, -torch.inf)
    torch.testing.assert_close(found, expected, rtol=near, atol=1e-5)
    assert_near(norm, replaced, torch.float32)


def test_a_call_of_fewer_rows_fills_fewer_tiles() -> None:
    kv = on_device(paged((100, 37), dtype=torch.float32))
    q = chunk((9, 5), 14, 8, torch.float32)
    how, collect = small(7, block_m=16), Collect(queries="all")
    made = attention(q, kv, launch=how, collect=collect, one_pass=True)
    for rows in (2, 4):
        few, lengths = q[:, :rows].contiguous(), (lens(98, 30), lens(rows, 1), lens(90, 30))
        scores = torch.zeros(2, 2, 112, device=DEVICE)
        norm = torch.zeros(2, 9, 14, device=DEVICE)
        expected, place = scores.double(), (few.double(), kv.k_cache.double(), kv.block_table)
        more = {"ranked": lengths[2], "scores": scores, "norm": norm.clone()}
        attend(made, few, kv, *lengths[:2], **more)
        reference.collect_scores(*place, *lengths, SCALE, collect, expected, norm.double())
        assert_near(scores[0, :, :90], expected[0, :, :90], torch.float32)
        assert_near(scores[1, :, :30], expected[1, :, :30], torch.float32)


@pytest.mark.parametrize(
    ("dtype", "queries"), [(torch.float32, "first+last"), (torch.bfloat16, "all")]
)
@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_scores_under_a_normaliser_that_is_far_off_are_finite(
    far: float, dtype: torch.dtype, queries: Queries
) -> None:
    """Also where rows of different warps vote, in 16 bits."""
    kv = on_device(paged((70,), dtype=dtype))
    q = chunk((2,), 6, 8, dtype)
    how, collect = small(block_m=32 if dtype == torch.float32 else 64), Collect(queries=queries)
    made = attention(q, kv, launch=how, collect=collect, one_pass=True)
    scores = torch.full((1, 2, 112), torch.nan, device=DEVICE)
    norm = torch.full((1, 2, 6), far, device=DEVICE)
    attend(made, q, kv, lens(70), lens(2), ranked=lens(69), scores=scores, norm=norm)
    assert scores[..., :69].isfinite().all()
    assert (scores[..., :69] > 0).all() == (far < 0)


def test_the_last_row_of_a_prefill_ranks_its_own_chunk() -> None:
    """Entries that earlier rows of the chunk do not see are candidates where the last row votes."""
    kv = on_device(paged((40,), dtype=torch.float32))
    q = chunk((12,), 4, 8, torch.float32)
    for score in ("logit", "weight"):
        scores = torch.zeros(1, 2, 48, device=DEVICE)
        expected = scores.double()
        tail = kv.block_table, lens(40), lens(12), lens(40), SCALE, Collect(score, "last")
        kernels.collect_scores(q, kv.k_cache, *tail, scores)
        reference.collect_scores(q.double(), kv.k_cache.double(), *tail, expected)
        assert_near(scores, expected, torch.float32)


def test_functions_have_the_signatures_and_results_of_the_reference() -> None:
    kv = on_device(paged((33, 5), dtype=torch.float32))
    q = chunk((3, 2), 4, 8, torch.float32)
    lengths = lens(33, 5), lens(3, 2)
    out = kernels.paged_attention(q, kv.k_cache, kv.v_cache, kv.block_table, *lengths, SCALE)
    lse = kernels.log_sum_exp(q, kv.k_cache, kv.block_table, *lengths, SCALE)
    assert_is_reference(out, lse, q, kv, *lengths)


@pytest.mark.parametrize("layout", [lambda kv: kv, interleaved, head_major])
def test_write_kv_stores_each_value_at_its_slot(layout: Callable[[Paged], Paged]) -> None:
    kv = on_device(layout(paged((60,), kv_heads=3, dim=10, dtype=torch.float16)))
    expected = kv.v_cache.clone()
    values = randn(3, 2, 3, 3, 10, dtype=torch.float16).to(DEVICE)
    slots = torch.tensor([[17, 64, -1], [-1, -1, 33]], device=DEVICE)
    reference.write_kv(expected, values, slots)
    kernels.write_kv(kv.v_cache, values, slots)
    # the reference leaves masked writes in page 0, the kernel nothing
    assert torch.equal(kv.v_cache[1:].nan_to_num(7), expected[1:].nan_to_num(7))
    assert kv.v_cache[0].isnan().all()


def test_caches_of_more_than_2_to_the_31_elements() -> None:
    """The last pages lie past what int32 can address; memory that nobody touches costs nothing."""
    pages = 2**31 // (2 * 16 * 16) + 8
    cache = torch.empty(pages, 2, 16, 1, 16, dtype=torch.float16, device=DEVICE)
    kv = paged((40,), kv_heads=1, dim=16, dtype=torch.float16)
    used = kv.block_table[0, :3]
    far = torch.arange(pages - 3, pages)
    cache[far.to(DEVICE)] = torch.stack([kv.k_cache, kv.v_cache], 1)[used].to(DEVICE)
    table = far[None].to(DEVICE)
    moved = Paged(cache[:, 0], cache[:, 1], table, kv.keys, kv.values)
    q = chunk((3,), 2, 16, torch.float16)
    out, lse = attend(attention(q, moved, launch=small()), q, moved, lens(40), lens(3))
    near = Paged(kv.k_cache.to(DEVICE), kv.v_cache.to(DEVICE), kv.block_table.to(DEVICE), [], [])
    assert_is_reference(out, lse, q, near, lens(40), lens(3))
    value = torch.ones(1, 1, 1, 16, dtype=torch.float16, device=DEVICE)
    kernels.write_kv(moved.v_cache, value, lens(int(far[2]) * 16 + 5)[None])
    assert (cache[-1, 1, 5] == 1).all()


def test_what_does_not_fit_is_refused() -> None:
    kv = on_device(paged((33,), dtype=torch.float32))
    q = chunk((3,), 4, 8, torch.float32)
    lengths = kv.block_table, lens(33), lens(3), SCALE
    made = attention(q, kv)
    with pytest.raises(ValueError, match="made for up to 1 requests of up to 3 rows"):
        made(torch.cat([q, q], 1), kv.k_cache, kv.v_cache, *lengths)
    with pytest.raises(ValueError, match="kv_lens"):
        made(q, kv.k_cache, kv.v_cache, kv.block_table, lens(33, 4), lens(3), SCALE)
    with pytest.raises(ValueError, match=r"cache \[6, 16, 2, 4\]"):
        made(q, kv.k_cache, kv.v_cache[..., :4], *lengths)
    with pytest.raises(ValueError, match="need `collect`"):
        made(q, kv.k_cache, kv.v_cache, *lengths, ranked=lens(9), scores=q.new_zeros(1, 2, 33))
    with pytest.raises(ValueError, match="no kernel for"):
        attention(q.double(), kv)


def test_the_table_goes_before_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = launching.default_launch(128, 28, torch.bfloat16, True)
    assert (rule.block_m, rule.block_n) == (32, 64)
    tuned = launching.Launch(64, 64)
    monkeypatch.setitem(launching.TUNED, (128, 32, True), tuned)
    assert launching.default_launch(128, 28, torch.bfloat16, True) is tuned
    assert launching.default_launch(128, 28, torch.bfloat16, False) == rule


def test_all_rows_vote_by_their_weights() -> None:
    for rows in (28, 63, 119):
        rule = launching.default_launch(64, rows, torch.bfloat16, True, all_rows=True)
        assert rule.votes == "weights"
        first_last = launching.default_launch(64, rows, torch.bfloat16, True)
        assert (rule.votes == first_last.votes) == (rows < 32)


@pytest.mark.parametrize(("batch", "keys", "hold"), [(64, 128, 1), (16, 64, 4), (1, 64, 4)])
def test_short_shares_collect_with_smaller_tiles(batch: int, keys: int, hold: int) -> None:
    rule = launching.default_launch(64, 63, torch.bfloat16, True, batch * 2 * 24_000 // 132)
    assert (rule.block_n, rule.hold) == (keys, hold)
    plain = launching.default_launch(64, 63, torch.bfloat16, False, batch * 2 * 24_000 // 132)
    assert plain.block_n == 128


@pytest.mark.gpu
def test_a_captured_call_follows_the_lengths() -> None:
    kv = on_device(paged((100, 63), dtype=torch.bfloat16))
    q = chunk((5, 5), 4, 8, torch.bfloat16)
    collect = Collect()
    made = attention(q, kv, collect=collect)
    kv_lens, q_lens, ranked = lens(100, 63), lens(5, 5), lens(96, 59)
    scores = torch.zeros(2, 2, 112, device=DEVICE)

    def call() -> Tensor:
        return made(
            q, kv.k_cache, kv.v_cache, kv.block_table, kv_lens, q_lens, SCALE,
            ranked=ranked, scores=scores,
        )  # fmt: skip

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for length, short in [(100, 63), (20, 40), (64, 1)]:
        kv_lens.copy_(lens(length, short))
        q_lens.copy_(lens(5, min(5, short)))
        ranked.copy_(kv_lens - q_lens + 1)
        graph.replay()
        replayed, found = out.clone(), scores.clone()
        assert torch.equal(call(), replayed)
        assert torch.equal(scores, found)
