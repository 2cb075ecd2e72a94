"""The rules in small: plateau, climb, ties, pairs."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.tune import objective
from specbench.tune.objective import Best, choose, score, standard_error
from specbench.tune.plateau import acceptance_length, on_plateau, tolerance
from specbench.tune.sample import Sample
from specbench.tune.search import ascend, climb
from specbench.tune.space import Setting, nearest_index


def steps(*committed: int, prompts: int = 4, times: int = 50) -> tuple[tuple[int, ...], ...]:
    """Histograms of prompts that all committed the same."""
    counts = [0] * (max(committed) + 1)
    for n in committed:
        counts[n] += times
    return (tuple(counts),) * prompts


def test_acceptance_length_is_pooled() -> None:
    assert acceptance_length(((0, 2, 0, 2), (0, 0, 4))) == pytest.approx(2.0)


def test_the_tolerance_is_one_standard_error_within_its_bounds() -> None:
    exact = steps(3, times=200)
    assert tolerance(exact, exact) == 0.01
    wide = (((0, 5, 0, 0, 0, 0, 5)),) * 2
    assert tolerance(wide, wide) == 0.05
    # sd 2.5 of 200 steps, mean 3.5: each length to 5.05 %, their difference to 7.1 %
    assert 0.01 < tolerance(steps(1, 6, times=200), steps(1, 6, times=200)) < 0.05


def test_prompts_are_paired() -> None:
    # lengths 2 and 6 by prompt, certain within each: only the choice of prompts varies
    best = ((0, 0, 30), (0, 0, 0, 0, 0, 0, 30)) * 3
    assert tolerance(best, best) == 0.01


def test_the_smallest_ratio_on_the_plateau_is_taken() -> None:
    measured = {
        0.01: steps(1),
        0.05: steps(2, 3, times=500),
        0.1: steps(3, times=500),
        0.2: steps(3, times=500),
    }
    assert on_plateau(measured) == [0.1, 0.2]


def test_the_ascent_starts_with_the_largest_and_ends_after_two_on_the_plateau() -> None:
    ratios = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
    lengths = {0.01: 1, 0.02: 2, 0.05: 4, 0.1: 4, 0.2: 4, 0.4: 4}
    measured: dict[float, tuple[tuple[int, ...], ...]] = {}
    order = []
    while left := ascend(ratios, measured, []):
        order.append(left[0])
        measured[left[0]] = steps(lengths[left[0]])
    assert order == [0.4, 0.01, 0.02, 0.05, 0.1]


def test_failed_ratios_are_passed_over() -> None:
    assert ascend((0.1, 0.2, 0.4), {}, [0.4]) == [0.2, 0.1]
    assert ascend((0.1, 0.2), {}, [0.1, 0.2]) == []


def climbed(values: Sequence[float | None], start: int) -> tuple[list[int], int]:
    """What a climb measures, in order, and where it sees the best."""
    known: dict[int, float | None] = {}
    while left := climb(len(values), known, start, 0.01):
        known[left[0]] = values[left[0]]
    seen = {at: value for at, value in known.items() if value is not None}
    return list(known), max(seen, key=lambda at: seen[at])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(11, 40))
def test_a_climb_finds_the_top_of_one_hill(top: int, start: int, slope: int) -> None:
    values = [1000.0 - slope * abs(at - top) for at in range(10)]
    order, found = climbed(values, start)
    assert found == top
    assert len(order) <= abs(top - start) + 3


def test_a_climb_passes_over_one_failure_but_not_two() -> None:
    assert climbed([1.0, None, 3.0, 2.0], 0)[1] == 2
    assert climbed([1.0, None, None, 3.0], 0) == ([0, 1, 2], 0)
    assert climbed([None, None, 5.0], 0)[1] == 2


@given(st.lists(st.integers(0, 100), min_size=1, unique=True).map(sorted), st.integers(-5, 110))
def test_nearest_index(grid: list[int], value: int) -> None:
    at = nearest_index(tuple(grid), value)
    assert abs(grid[at] - value) == min(abs(x - value) for x in grid)


def test_ties_go_to_the_smaller_gamma_then_ratio() -> None:
    a, b, c, d = Setting(0.1, 4), Setting(0.2, 3), Setting(0.1, 3), Setting(0.05, 2)
    scored = {a: (100.0, 0.008), b: (99.5, 0.0), c: (99.4, 0.0), d: (98.9, 0.0)}
    assert choose(scored) == c
    assert choose(scored | {a: (100.0, None)}) == b
    assert choose(scored | {a: (100.0, 0.5)}) == c, "noise excuses one per cent, not more"
    assert choose({}) is None


class Fixed:
    """A measure that returns given throughputs, and remembers who was asked."""

    def __init__(self, **values: list[float]) -> None:
        self.values = values
        self.asked: list[int | None] = []

    def __call__(self, setting: Setting, repeat: int) -> Sample:
        self.asked.append(setting.gamma)
        throughput = self.values[f"g{setting.gamma}"][repeat]
        return Sample(throughput, 1000 / throughput, ())


def test_pairs_alternate_and_the_value_is_the_bests_times_the_median_ratio() -> None:
    measure = Fixed(g2=[110, 115, 110], g3=[100, 100, 100])
    scored = score(Setting(0.1, 2), Best(Setting(0.1, 3), 90.0), measure, 3, "throughput")
    assert measure.asked == [2, 3, 3, 2, 2, 3]
    assert scored.noise == pytest.approx(standard_error([1.1, 1.15, 1.1]))
    assert scored.merit == pytest.approx(90 * 1.1 * (1 - objective.PENALTY * (scored.noise or 0)))


def test_spread_costs() -> None:
    calm = score(Setting(0.1, 2), None, Fixed(g2=[100, 100, 100]), 3, "throughput")
    wild = score(Setting(0.1, 2), None, Fixed(g2=[80, 100, 120]), 3, "throughput")
    assert calm.merit == 100
    assert wild.merit < 100


def test_a_hopeless_candidate_is_not_repeated() -> None:
    measure = Fixed(g2=[50, 50, 50], g3=[100, 100, 100])
    scored = score(Setting(0.1, 2), Best(Setting(0.1, 3), 100.0), measure, 3, "throughput")
    assert len(measure.asked) == 2
    assert (scored.merit, scored.noise) == (50.0, None)


def test_a_single_value_has_no_noise() -> None:
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 1.0]) == 0.0
