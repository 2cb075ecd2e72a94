"""Reports on counters of speculation: monotone, never negative, nothing divided by zero."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.results.acceptance import Step, count_steps, steps_of
from specbench.results.cells import build_groups
from specbench.results.reading import RunData
from specbench.results.records import RequestRecord, Status
from specbench.results.tables import build_rows
from tests.support.records import AR, make_arm, make_request, make_run

GAMMA = 4


@st.composite
def any_step(draw: st.DrawFn) -> Step:
    drafted = draw(st.integers(0, GAMMA))
    accepted = draw(st.integers(0, drafted))
    return Step(drafted, accepted, draw(st.integers(max(1, accepted), accepted + 1)))


@given(st.lists(any_step(), max_size=12), st.integers(0, 12))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_counters_only_grow(steps: list[Step], cut: int) -> None:
    """vllm#6642, #26372, #33729: a negative increment crashed the metrics.

    Whatever the steps are, each of our counts of the first of them is at most that of all.
    """
    part, whole = count_steps(steps[:cut], GAMMA), count_steps(steps, GAMMA)
    for name in ("rounds", "drafted", "accepted"):
        assert 0 <= getattr(part, name) <= getattr(whole, name)
    for name in ("reached", "offered", "offered_next"):
        pairs = zip(getattr(part, name), getattr(whole, name), strict=True)
        assert all(0 <= some <= all_ for some, all_ in pairs)
        assert sorted(getattr(whole, name), reverse=True) == getattr(whole, name)
    assert sum(whole.reached) == whole.accepted <= whole.drafted == sum(whole.offered)


def row_of(requests: list[RequestRecord], **changes: Any) -> dict[str, Any]:
    run = make_run(prompts=len(requests), batch_size=1, gamma=GAMMA, arms=("vegas",))
    data = RunData(run, requests, [make_arm("vegas", **changes)], [])
    return build_rows(run, build_groups(data))[0]


def test_a_gap_in_the_histogram_keeps_positions_in_place() -> None:
    """specdec_bench walks the lengths that were observed: after a gap it mislabels positions.

    Nothing accepted 1 or 3 drafts; the second and the fourth have their own rates all the same.
    """
    steps = {"drafted": [4] * 4, "accepted": [0, 2, 2, 4], "running": 1}
    row = row_of([make_request("vegas", 0, [1, 3, 3, 5], **steps)])
    assert row["acceptance_histogram"] == [1, 0, 2, 0, 1]
    assert row["spec_decode_per_position_acceptance_rates"] == [0.75, 0.75, 0.25, 0.25]
    assert row["conditional_per_position_acceptance_rates"] == [0.75, 1, 1 / 3, 1]


def test_al_is_no_rate() -> None:
    """minefield#98: the denominator of the rate is the budget. More drafts, more tokens, less rate.

    Of two drafts 1.5 are accepted, of four 2: the rate falls from 0.75 to 0.5, and AL rises.
    """
    few = make_request("vegas", 0, [2, 3], drafted=[2, 2], accepted=[1, 2], running=1)
    many = make_request("vegas", 0, [2, 4], drafted=[4, 4], accepted=[1, 3], running=1)
    two, four = row_of([few]), row_of([many])
    assert (two["spec_decode_acceptance_rate"], four["spec_decode_acceptance_rate"]) == (0.75, 0.5)
    assert (two["spec_decode_acceptance_length"], four["spec_decode_acceptance_length"]) == (2.5, 3)


def test_an_arm_that_failed_repeats_no_figure_of_the_turn_before() -> None:
    """Spec-Bench: out of memory, it printed ERROR and appended the last turn's tokens and times."""
    request = make_request("vegas", 0, [3, 3], drafted=[4, 4], running=1)
    row = row_of([request], status=Status.OOM, message="full")
    assert row["status"] == "OOM"
    figures = ("output_throughput", "mean_tpot_ms", "spec_decode_acceptance_length", "completed")
    assert [row[name] for name in figures] == [None] * 4


@pytest.mark.parametrize("arm", [AR, "vegas"])
def test_tokens_are_counted_by_ids_in_every_arm(arm: str) -> None:
    """Spec-Bench: the method's tokens by its own counter, the baseline's by tokenising its text."""
    run = make_run(prompts=1, batch_size=1, gamma=GAMMA, arms=(arm,))
    steps = [1] * 6 if arm == AR else [4, 2]
    request = make_request(arm, 0, steps, drafted=None if arm == AR else [4, 4], running=1)
    row = build_rows(run, build_groups(RunData(run, [request], [make_arm(arm)], [])))[0]
    assert row["total_output_tokens"] == 7


def test_a_step_says_what_was_drafted_or_nothing() -> None:
    """vllm#7586: an engine that does not say what it drafted has no steps to count."""
    silent = make_request("vegas", 0, [3, 2]).model_copy(update={"drafted": None})
    assert steps_of(silent) == []
    row = row_of(
        [silent.model_copy(update={"times": make_request("v", 0, [3, 2], running=1).times})]
    )
    assert row["spec_decode_acceptance_rate"] is None
    assert row["spec_decode_acceptance_length"] == 2.5
