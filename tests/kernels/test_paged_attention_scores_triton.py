"""Scores that Triton paged attention collects, against the reference in fp64."""

from typing import Any, Literal

import pytest
import torch

from specbench.config import Queries, Share
from specbench.kernels.paged_attention import reference
from specbench.kernels.paged_attention.reference import Collect
from tests.support.device import DEVICE
from tests.support.paged import paged, randn
from tests.support.paged_kernels import (
    SCALE,
    assert_is_reference,
    assert_near,
    attend,
    attention,
    chunk,
    kernels,
    launching,
    lens,
    on_device,
    small,
)

# requests of the tests of scores: their lengths, rows, and entries that are ranked
VOTED, VOTERS, RANKED = (1, 17, 15, 63, 100), (1, 7, 0, 2, 5), (1, 11, 4, 0, 95)


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
