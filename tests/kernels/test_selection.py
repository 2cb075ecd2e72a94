"""Selection against sorting each list by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.selection.reference import select


def distinct(seed: int, *shape: int) -> Tensor:
    """Scores without ties, any sign."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    return (torch.randperm(count, generator=generator) - count // 2).view(shape).float()


def by_sorting(
    scores: list[float], ranked: int, keep: int, sinks: int = 0, window: int = 0
) -> set[int]:
    """The positions that one list must give, where scores are distinct and `keep` is enough."""
    forced = {p for p in range(ranked) if p < sinks or p >= ranked - window}
    rest = sorted(set(range(ranked)) - forced, key=lambda p: -scores[p])
    return forced | set(rest[: max(0, min(keep, ranked) - len(forced))])


def check(
    best: Tensor,
    scores: Tensor,
    ranked: list[int],
    keep: list[int],
    sinks: int = 0,
    window: int = 0,
) -> None:
    layers, requests, sets, _ = scores.shape
    assert best.dtype == torch.int64
    assert best.shape[:3] == scores.shape[:3]
    for layer in range(layers):
        for r in range(requests):
            for s in range(sets):
                count = min(keep[r], ranked[r])
                row = best[layer, r, s].tolist()
                expected = by_sorting(
                    scores[layer, r, s].tolist(), ranked[r], keep[r], sinks, window
                )
                assert set(row[:count]) == expected
                assert len(set(row[:count])) == count
                assert set(row[count:]) <= {-1}


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 100])
def test_equals_sorting(length: int, sets: int) -> None:
    scores = distinct(length, 2, 4, sets, length)
    ranked = [length, max(1, length // 2), 1, 0]
    width = max(1, length // 3)
    keep = [width, max(1, width // 2), width, width]
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), width)
    check(best, scores, ranked, keep)


def test_whole_width() -> None:
    scores = distinct(1, 1, 3, 2, 17)
    ranked, keep = [17, 9, 0], [17, 17, 17]
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), 17)
    check(best, scores, ranked, keep)


def test_keep_and_ranked_vary_by_request() -> None:
    scores = distinct(2, 2, 5, 2, 100)
    ranked, keep = [100, 63, 16, 5, 40], [1, 8, 3, 8, 0]
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), 8)
    check(best, scores, ranked, keep)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("forced", [(0, 0), (2, 3)])
def test_what_stands_past_the_candidates_is_not_read(
    poison: float, forced: tuple[int, int]
) -> None:
    scores = distinct(3, 2, 3, 2, 40)
    ranked, keep = [40, 17, 6], [6, 6, 6]
    for r, count in enumerate(ranked):
        scores[:, r, :, count:] = poison
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), 6, *forced)
    check(best, scores, ranked, keep, *forced)


@pytest.mark.parametrize(("sinks", "window"), [(4, 0), (0, 4), (2, 3), (3, 3)])
def test_forced_entries_count_towards_keep(sinks: int, window: int) -> None:
    scores = distinct(4, 2, 4, 2, 63)
    scores[..., :4] -= 1000
    scores[..., -4:] -= 1000
    ranked, keep = [63, 63, 20, 7], [6, 12, 9, 7]
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), 12, sinks, window)
    check(best, scores, ranked, keep, sinks, window)


def test_sinks_and_window_may_cover_everything() -> None:
    scores = distinct(5, 1, 2, 1, 30)
    ranked, keep = [5, 3], [8, 8]
    best = select(scores, torch.tensor(ranked), torch.tensor(keep), 8, sinks=4, window=4)
    check(best, scores, ranked, keep, 4, 4)


def test_keep_bounds_the_forced_entries() -> None:
    scores = distinct(6, 1, 1, 1, 30)
    best = select(scores, torch.tensor([30]), torch.tensor([3]), 8, sinks=4, window=4)
    row = best[0, 0, 0].tolist()
    assert len(set(row[:3])) == 3
    assert all(p < 4 or p >= 26 for p in row[:3])
    assert row[3:] == [-1] * 5


def test_minus_infinity_is_the_least_candidate() -> None:
    scores = torch.tensor([-torch.inf, 1.0, -torch.inf, 2.0, 5.0, 5.0]).view(1, 1, 1, -1)
    best = select(scores, torch.tensor([4]), torch.tensor([4]), 5)
    assert sorted(best.flatten().tolist()) == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_nan_is_no_candidate(keep: int) -> None:
    scores = torch.tensor([torch.nan, 1.0, torch.nan, -torch.inf, 9.0]).view(1, 1, 1, -1)
    best = select(scores, torch.tensor([4]), torch.tensor([keep]), 4)
    assert set(best.flatten().tolist()) - {-1} == set([1, 3][:keep])
    forced = select(scores, torch.tensor([4]), torch.tensor([keep]), 4, sinks=1)
    assert set(forced.flatten().tolist()) - {-1} == set([0, 1, 3][:keep])


def test_scores_are_left_alone() -> None:
    scores = distinct(7, 2, 2, 2, 20)
    before = scores.clone()
    select(scores, torch.tensor([20, 10]), torch.tensor([5, 5]), 5, sinks=1, window=1)
    assert torch.equal(scores, before)


@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    ranked=st.integers(0, 40),
    keep=st.integers(0, 40),
    data=st.data(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_ties_lose_nothing(scores: list[int], ranked: int, keep: int, data: st.DataObject) -> None:
    """Whichever of equal scores are chosen, the chosen scores are the best ones."""
    ranked = min(ranked, len(scores))
    width = data.draw(st.integers(min(keep, len(scores)), len(scores)))
    keep = min(keep, width)
    best = select(
        torch.tensor(scores).float().view(1, 1, 1, -1),
        torch.tensor([ranked]),
        torch.tensor([keep]),
        width,
    )
    count = min(keep, ranked)
    row = best[0, 0, 0].tolist()
    chosen = row[:count]
    assert len(set(chosen)) == count
    assert all(0 <= p < ranked for p in chosen)
    best_scores = sorted(scores[:ranked], reverse=True)[:count]
    assert sorted((scores[p] for p in chosen), reverse=True) == best_scores
    assert row[count:] == [-1] * (width - count)
