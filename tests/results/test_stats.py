"""Bootstrap intervals: seeded, paired, and honest about what is unknown."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specbench.results import stats

PROMPTS = 16


def noisy(seed: int, ratio: float) -> tuple[stats.Array, ...]:
    """Two arms on prompts and repeats of very different speed; the true speed-up is `ratio`."""
    random = np.random.default_rng(seed)
    shared = random.uniform(0.5, 2.0, PROMPTS) * random.uniform(0.9, 1.1, (3, 1))
    tokens = np.full((3, PROMPTS), 100.0)
    base = shared * random.normal(1, 0.05, (3, PROMPTS))
    arm = shared * random.normal(1, 0.05, (3, PROMPTS)) / ratio
    return tokens, arm, tokens, base


def test_the_interval_covers_the_known_ratio() -> None:
    """At 95 % about 10 of 200 intervals miss; with 30 misses it would be nearer to 85 %."""
    missed = width = 0.0
    for seed in range(200):
        found = stats.speedup(*noisy(seed, 2.0))
        assert found.low is not None
        assert found.high is not None
        missed += not found.low <= 2.0 <= found.high
        width += found.high - found.low
    assert missed < 30
    assert width / 200 < 0.2


def test_the_interval_is_seeded() -> None:
    assert stats.speedup(*noisy(0, 1.5)) == stats.speedup(*noisy(0, 1.5))


def test_pairing_cancels_what_the_arms_share() -> None:
    """Prompts differ fourfold in speed; the ratio, exact in every prompt, has no spread."""
    seconds = np.random.default_rng(0).uniform(0.5, 2.0, (3, PROMPTS))
    tokens = np.full_like(seconds, 100.0)
    found = stats.speedup(tokens, seconds / 1.7, tokens, seconds)
    assert (found.value, found.low, found.high) == pytest.approx((1.7, 1.7, 1.7))
    assert stats.throughput(tokens, seconds).high > 1.05 * stats.throughput(tokens, seconds).low


def test_only_prompts_that_both_arms_finished_are_compared() -> None:
    tokens = np.full((1, 3), 10.0)
    seconds = np.array([[1.0, 1.0, 0.0]])
    base = np.array([[2.0, 0.0, 100.0]])
    assert stats.speedup(tokens, seconds, tokens, base).value == pytest.approx(2)


def test_a_repeat_that_is_missing_is_left_out_of_the_median() -> None:
    tokens = np.array([[10.0], [0.0], [30.0]])
    seconds = np.array([[1.0], [0.0], [1.0]])
    assert stats.throughput(tokens, seconds).value == pytest.approx(20)


def test_nothing_is_unknown_not_zero() -> None:
    nothing = np.zeros((3, 2))
    assert stats.throughput(nothing, nothing) == stats.Estimate(None, None, None)
    assert stats.throughput(np.zeros((2, 0)), np.zeros((2, 0))) == stats.Estimate()
    assert stats.speedup(nothing, nothing, nothing + 1, nothing + 1) == stats.Estimate()


def test_fewer_than_three_repeats_have_no_interval() -> None:
    found = stats.throughput(np.array([[10.0]]), np.array([[2.0]]))
    assert found == stats.Estimate(5.0, None, None)
    found = stats.throughput(np.full((2, 9), 10.0), np.full((2, 9), 2.0))
    assert found == stats.Estimate(5.0, None, None)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_estimates_lie_within_what_was_seen(repeats: int, prompts: int, random) -> None:
    tokens, seconds = (
        np.array([[random.uniform(0.1, 10) for _ in range(prompts)] for _ in range(repeats)])
        for _ in range(2)
    )
    speeds = tokens / seconds
    found = stats.throughput(tokens, seconds)
    assert speeds.min() * 0.999 <= found.value <= speeds.max() * 1.001
    if repeats < stats.MIN_REPEATS:
        assert found.low is found.high is None
    else:
        assert speeds.min() * 0.999 <= found.low <= found.high <= speeds.max() * 1.001


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_the_interval_of_a_proportion(part: int, whole: int, low: float, high: float) -> None:
    found = stats.proportion(part, whole)
    assert found.value == part / whole
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@example((14, 14))  # rounding had the interval end below 1
@example((0, 14))
def test_a_proportion_lies_in_its_interval(parts: tuple[int, int]) -> None:
    part, whole = parts
    found = stats.proportion(part, whole)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert (found.low == 0.0) == (part == 0)
    assert (found.high == 1.0) == (part == whole)
