"""The Triton selection against the reference."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.selection import reference
from tests.support.paged import randn

pytest.importorskip("triton")

from specbench.kernels.selection.triton import select
from specbench.kernels.selection.workspace import (
    FEW,
    FEW_SHORT,
    MANY,
    SHORT,
    Launch,
    SelectionWorkspace,
    default_launch,
)

# the greatest of nothing but NaN, which the kernel asks for and passes over
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# lists of more than 128 scores are sampled, a step takes 256 of them
SMALL = Launch(
    warps=1, depth=8, kept=8, samples=64, run=4, margin=3, programs_per_sm=1, registers=128
)


def poisoned(rows: int, length: int, width: int, launch: Launch = SMALL) -> SelectionWorkspace:
    """A workspace that nothing has written yet."""
    workspace = SelectionWorkspace(rows, length, width, DEVICE, launch)
    workspace.found.fill_(-1)
    workspace.failed.fill_(2**31 - 1)
    return workspace


def run(
    scores: Tensor,
    ranked: list[int],
    keep: list[int],
    width: int,
    sinks: int = 0,
    window: int = 0,
    launch: Launch = SMALL,
) -> Tensor:
    """The kernel's result, its workspace and its output poisoned."""
    shape = scores.shape
    workspace = poisoned(shape[:3].numel(), shape[3], width, launch)
    return select(
        scores.to(DEVICE),
        torch.tensor(ranked, device=DEVICE),
        torch.tensor(keep, device=DEVICE),
        width,
        sinks,
        window,
        workspace=workspace,
        out=torch.full((*shape[:3], width), -7, device=DEVICE),
    ).cpu()


def check(
    best: Tensor,
    scores: Tensor,
    ranked: list[int],
    keep: list[int],
    sinks: int = 0,
    window: int = 0,
) -> None:
    """Distinct candidates, then -1; and of equal scores no fewer than the reference has."""
    width = best.shape[-1]
    expected = reference.select(
        scores.float(), torch.tensor(ranked), torch.tensor(keep), width, sinks, window
    )
    position = torch.arange(scores.shape[-1])
    for index in torch.cartesian_prod(*map(torch.arange, best.shape[:3])).tolist():
        layer, r, s = index
        row, wanted = best[layer, r, s], expected[layer, r, s]
        wanted = wanted[wanted >= 0]
        chosen = row[: len(wanted)]
        assert set(row[len(wanted) :].tolist()) <= {-1}
        assert len(set(chosen.tolist())) == len(wanted)
        assert ((chosen >= 0) & (chosen < ranked[r])).all()
        forced = (position < sinks) | ((position >= ranked[r] - window) & (position < ranked[r]))
        value = scores[layer, r, s].float().masked_fill(forced, torch.inf)
        assert torch.equal(value[chosen].sort().values, value[wanted].sort().values)


def scores_of(seed: int, *shape: int) -> Tensor:
    return randn(seed, *shape, dtype=torch.float32)


@pytest.mark.parametrize("length", [1, 15, 31, 32, 33, 128, 129, 255, 256, 257, 1300])
def test_equals_the_reference(length: int) -> None:
    scores = scores_of(length, 1, 4, 1, length)
    ranked = [length, max(1, length // 2), 1, 0]
    width = max(1, length // 3)
    keep = [width, max(1, width // 2), width, width]
    check(run(scores, ranked, keep, width), scores, ranked, keep)


@pytest.mark.parametrize("launch", [MANY, SHORT, FEW, FEW_SHORT])
def test_the_launches_of_real_calls(launch: Launch) -> None:
    scores = torch.softmax(3 * scores_of(7, 1, 2, 1, 40_000), dim=-1)
    ranked, keep = [40_000, 9001], [2800, 700]
    check(run(scores, ranked, keep, 2800, launch=launch), scores, ranked, keep)


def test_layers_requests_and_sets() -> None:
    scores = scores_of(1, 2, 2, 2, 150)
    ranked, keep = [150, 99], [9, 12]
    check(run(scores, ranked, keep, 12), scores, ranked, keep)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("weights", torch.float32), ("weights", torch.bfloat16), ("logits", torch.float16)],
)
def test_kinds_of_scores(kind: str, dtype: torch.dtype) -> None:
    scores = 9 * scores_of(1, 1, 2, 1, 900)
    if kind == "weights":
        scores = torch.softmax(scores, dim=-1)
    scores = scores.to(dtype)
    ranked, keep = [900, 801], [63, 40]
    check(run(scores, ranked, keep, 63), scores, ranked, keep)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["both", "negative", "steps", "zeros", "infinite", "tiny"])
def test_the_search_ends_at_a_value_of_the_type(kind: str, dtype: torch.dtype) -> None:
    """Of 16 bits the scores have many equals, and a search between neighbours finds none."""
    for seed in range(4):
        length, keep = 90 + 190 * seed, (7, 30, 80, 333)[seed]
        scores = scores_of(seed, 1, 1, 2, length)
        if kind == "negative":
            scores = -scores.abs()
        elif kind == "steps":
            scores = (2 * scores).round() / 2
        elif kind == "zeros":
            scores[..., ::3], scores[..., 1::5] = 0.0, -0.0
        elif kind == "infinite":
            scores[..., ::4], scores[..., 2::9] = -torch.inf, torch.inf
        elif kind == "tiny":
            scores = 1e-6 * scores
        scores = scores.to(dtype)
        launch = replace(SMALL, margin=(-100.0, 0.0, 1.0, 8.0)[seed])
        check(run(scores, [length], [keep], keep, launch=launch), scores, [length], [keep])


@pytest.mark.parametrize("keep", [0, 1, 299, 301, 600])
def test_any_number_may_be_kept(keep: int) -> None:
    scores = scores_of(2, 1, 2, 1, 600)
    ranked, keeps = [300, 600], [keep, keep]
    check(run(scores, ranked, keeps, 600), scores, ranked, keeps)


def test_short_lists_are_not_sampled() -> None:
    scores = scores_of(2, 1, 2, 1, 600)
    ranked, keep = [300, 600], [300, 111]
    launch = replace(SMALL, samples=512)
    check(run(scores, ranked, keep, 300, launch=launch), scores, ranked, keep)


def test_keep_and_ranked_vary_by_request() -> None:
    scores = scores_of(3, 1, 6, 1, 500)
    ranked, keep = [500, 63, 200, 5, 40, 499], [1, 8, 30, 80, 0, 80]
    check(run(scores, ranked, keep, 80), scores, ranked, keep)


@pytest.mark.parametrize("margin", [-100.0, 0.0, 100.0])
def test_a_bad_threshold_costs_time_only(margin: float) -> None:
    scores = scores_of(4, 1, 1, 1, 700)
    launch = replace(SMALL, margin=margin)
    check(run(scores, [650], [33], 50, launch=launch), scores, [650], [33])
    check(run(scores, [650], [33], 50, 3, 4, launch=launch), scores, [650], [33], 3, 4)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("forced", [(0, 0), (2, 3)])
def test_what_stands_past_the_candidates_is_not_read(
    poison: float, forced: tuple[int, int]
) -> None:
    scores = scores_of(5, 1, 2, 1, 400)
    ranked, keep = [170, 6], [60, 6]
    for r, count in enumerate(ranked):
        scores[:, r, :, count:] = poison
    check(run(scores, ranked, keep, 60, *forced), scores, ranked, keep, *forced)


@pytest.mark.parametrize(("sinks", "window"), [(4, 0), (0, 4), (200, 300)])
def test_forced_entries_come_first(sinks: int, window: int) -> None:
    scores = scores_of(6, 1, 4, 1, 400)
    scores[..., :4] -= 1000
    scores[..., -4:] = torch.nan
    ranked, keep = [400, 400, 150, 7], [6, 30, 9, 7]
    best = run(scores, ranked, keep, 30, sinks, window)
    check(best, scores, ranked, keep, sinks, window)


@pytest.mark.parametrize(
    ("length", "value"),
    [*((100, v) for v in (0.0, -0.0, -2.5, torch.inf, -torch.inf)), (1500, 1.5), (1500, 0.0)],
)
def test_all_equal(length: int, value: float) -> None:
    scores = torch.full((1, 1, 1, length), value)
    check(run(scores, [length - 1], [20], 25), scores, [length - 1], [20])


@pytest.mark.parametrize("levels", [2, 3, 40])
def test_equal_scores_at_the_threshold(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(-1, levels - 1, (1, 2, 1, 600), generator=generator).float()
    ranked, keep = [600, 577], [90, 100]
    check(run(scores, ranked, keep, 100), scores, ranked, keep)


def test_extreme_values() -> None:
    scores = scores_of(8, 1, 4, 1, 200)
    scores[0, 0] *= 1e-42
    scores[0, 1] *= 1e38
    scores[0, 2, 0, 5:] = -torch.inf
    scores[0, 3, 0, ::2] = -0.0
    scores[0, 3, 0, 1::2] = 0.0
    ranked, keep = [200] * 4, [40] * 4
    assert (scores[0, 0] != 0).sum() > 150
    check(run(scores, ranked, keep, 40), scores, ranked, keep)


@pytest.mark.parametrize("numbers", [0, 3, 200])
def test_nan_is_never_selected(numbers: int) -> None:
    scores = torch.full((1, 2, 1, 400), torch.nan)
    scores[..., 100 : 100 + numbers] = scores_of(9, 1, 2, 1, numbers)
    scores[:, 1] = -scores[:, 1]
    ranked, keep = [400, 390], [50, 300]
    check(run(scores, ranked, keep, 300), scores, ranked, keep)


@pytest.mark.parametrize(
    ("page_size", "index"), [(16, torch.int32), (16, torch.int64), (5, torch.int32)]
)
def test_slots_through_the_block_table(page_size: int, index: torch.dtype) -> None:
    scores = scores_of(10, 1, 2, 2, 300)
    ranked, keep = torch.tensor([300, 141]), torch.tensor([50, 20])
    generator = torch.Generator().manual_seed(1)
    pages = torch.randperm(2 * -(-300 // page_size), generator=generator).view(2, -1) + 2**20
    arguments = scores.to(DEVICE), ranked.to(DEVICE), keep.to(DEVICE), 50
    workspace = poisoned(4, 300, 50)
    positions = select(*arguments, workspace=workspace).cpu()
    out = torch.full((1, 2, 2, 50), -7, dtype=index, device=DEVICE)
    result = select(
        *arguments,
        block_table=pages.to(index).to(DEVICE),
        page_size=page_size,
        workspace=workspace,
        out=out,
    )
    assert result is out
    for r in range(2):
        own = positions[:, r]
        slots = pages[r][own.clamp(min=0) // page_size] * page_size + own % page_size
        expected = torch.where(own >= 0, slots, -1)
        assert torch.equal(out[:, r].cpu().long().sort().values, expected.sort().values)


def test_strided_scores_and_results() -> None:
    scores = scores_of(11, 2, 4, 2, 301).to(DEVICE)[:, 1:3, :, 1:]
    ranked, keep = [300, 150], [40, 12]
    out = torch.full((2, 5, 2, 44), -7, dtype=torch.int32, device=DEVICE)
    target = out[:, 2:4, :, :40]
    result = select(
        scores,
        torch.tensor(ranked, device=DEVICE),
        torch.tensor(keep, device=DEVICE),
        40,
        workspace=poisoned(8, 300, 40),
        out=target,
    )
    check(result.cpu().long(), scores.cpu(), ranked, keep)
    assert (out[:, [0, 1, 4]] == -7).all()
    assert (out[..., 40:] == -7).all()


def test_one_workspace_serves_call_after_call() -> None:
    workspace = poisoned(4, 700, 60)
    for seed, rows, length in [(0, 2, 700), (1, 1, 90), (3, 1, 700), (2, 2, 333)]:
        scores = scores_of(seed, 2, rows, 1, length)
        if seed % 2:
            scores[0] = 1.0
        ranked, keep = [length] * rows, [50] * rows
        best = select(
            scores.to(DEVICE),
            torch.tensor(ranked, device=DEVICE),
            torch.tensor(keep, device=DEVICE),
            60,
            workspace=workspace,
        )
        check(best.cpu(), scores, ranked, keep)
        assert (workspace.queue == 0).all()


def test_addresses_past_two_billion_entries() -> None:
    # virtual memory: only what is written takes any
    storage = torch.empty(2**31 + 4096, dtype=torch.float16, device=DEVICE)
    scores = storage.as_strided((2, 1, 1, 200), (2**31, 1, 1, 1))
    small = scores_of(12, 2, 1, 1, 200).half()
    scores.copy_(small)
    ranked, keep = torch.tensor([200], device=DEVICE), torch.tensor([30], device=DEVICE)
    best = select(scores, ranked, keep, 30, workspace=poisoned(2, 200, 30))
    check(best.cpu(), small, [200], [30])


def test_nothing_to_do() -> None:
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    assert select(torch.zeros(2, 0, 1, 9, device=DEVICE), none, none, 4).shape == (2, 0, 1, 4)
    one = torch.ones(1, dtype=torch.int64, device=DEVICE)
    assert select(torch.zeros(2, 1, 1, 9, device=DEVICE), one, one, 0).shape == (2, 1, 1, 0)


@given(
    data=st.data(),
    length=st.integers(1, 400),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    sinks=st.integers(0, 3),
    window=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_list(
    data: st.DataObject, length: int, levels: int, sinks: int, window: int, seed: int
) -> None:
    width = data.draw(st.integers(1, length))
    ranked = data.draw(st.integers(0, length))
    keep = data.draw(st.integers(0, width))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels, (1, 1, 1, length), generator=generator).float()
    scores /= 10 ** (seed % 5)
    best = run(scores, [ranked], [keep], width, sinks, window)
    check(best, scores, [ranked], [keep], sinks, window)


def test_what_it_cannot_take() -> None:
    scores = torch.zeros(1, 2, 1, 50, device=DEVICE)
    two = torch.ones(2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="scores are torch"):
        select(scores.double(), two, two, 4)
    with pytest.raises(ValueError, match="width 51"):
        select(scores, two, two, 51)
    with pytest.raises(ValueError, match="expected int32 or int64"):
        select(scores, two, two, 4, out=torch.zeros(1, 2, 1, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="each of 2 requests"):
        select(scores, two[:1], two, 4)
    with pytest.raises(ValueError, match="dense in their last axis"):
        select(scores[..., ::2], two, two, 4)
    with pytest.raises(ValueError, match="at most 1 lists of 50 scores"):
        select(scores, two, two, 4, workspace=poisoned(1, 50, 4))


def test_a_launch_holds_the_candidates_of_what_it_is_chosen_for() -> None:
    """In registers, so that no step of the search reads them again."""
    sizes = (1152, 7000, 100_000), (3072, 1400, 20_000), (48, 1200, 24_000)
    for (rows, width, length), item in product(sizes, (2, 4)):
        launch = default_launch(rows, length, width, 132, item)
        share = width / length
        deviation = (launch.samples * share * (1 - share)) ** 0.5
        candidates = width + length * launch.margin * (deviation + 1) / launch.samples
        each = candidates / launch.columns
        assert each + 3 * each**0.5 < launch.kept
        assert launch.columns * launch.programs_per_sm * launch.registers <= 65_536


def test_ordinary_lists_are_chosen_from_few_candidates() -> None:
    """None is left to the slow path, though its columns have little more room than they need."""
    scores = scores_of(5, 1, 2, 1, 3000).exp()
    workspace = poisoned(2, 3000, 30, replace(SMALL, margin=1))
    assert workspace.capacity < 3000 / workspace.launch.columns / 2
    lengths = torch.full((2,), 3000, device=DEVICE)
    select(scores.to(DEVICE), lengths, torch.full_like(lengths, 30), 30, workspace=workspace)
    assert (workspace.failed == 2**31 - 1).all()
