"""A record that contradicts itself, or the plan, is refused by name."""

import pytest

from specbench.errors import DataError
from specbench.results.cells import build_groups
from specbench.results.invariants import (
    InvariantError,
    check_request,
    check_times,
    unaccounted,
)
from specbench.results.reading import RunData
from specbench.results.records import RequestRecord, Status
from tests.support.records import AR, make_arm, make_request, make_run


def good() -> RequestRecord:
    return make_request(
        "vegas", 1, [5, 2], drafted=[4, 4], accepted=[4, 1], split=(0.05, 0.03, 0.01, 0.01)
    )


def altered(**changes: object) -> RequestRecord:
    return good().model_copy(update=changes)


def timed(**changes: object) -> RequestRecord:
    record = good()
    return record.model_copy(update={"times": record.times.model_copy(update=changes)})


def stepped(**changes: object) -> RequestRecord:
    return timed(steps=good().times.steps.model_copy(update=changes))


def test_a_sound_record_passes() -> None:
    check_request(good(), gamma=4, full_batch=2)
    check_times(good())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (altered(output_ids=[1, 2, 3]), "7 tokens committed, 3 in the output"),
        (altered(output_ids=[]), "7 tokens committed, 0 in the output"),
        (altered(drafted=[4]), "1 entries in drafted for 2 steps"),
        (stepped(selection_s=[0.0]), "1 entries in selection_s for 2 steps"),
        (altered(accepted=[5, 1]), "step 0: 5 accepted of 4 drafted, gamma 4"),
        (altered(accepted=[4, -1]), "step 1: -1 accepted"),
        (altered(drafted=[5, 4]), "step 0: 4 accepted of 5 drafted, gamma 4"),
        (altered(committed=[5, 3]), "step 1: 3 committed, 1 accepted"),
        (altered(committed=[5, 0]), "step 1: 0 committed"),
        (stepped(running=[2, 3]), "step 1: 3 running in a batch of 2"),
        (stepped(running=[0, 2]), "step 0: 0 running"),
    ],
)
def test_counts_that_contradict_each_other(record: RequestRecord, message: str) -> None:
    with pytest.raises(InvariantError) as caught:
        check_request(record, gamma=4, full_batch=2)
    assert "vegas on govreport, repeat 0, prompt 1 (item-1)" in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (timed(queue_s=-0.1), "negative queue time"),
        (stepped(step_s=[0.3, -0.1]), "negative step time"),
        (timed(prefill_s=0.6), "prefill 0.600000 s exceeds TTFT 0.500000 s"),
        (timed(e2e_s=0.6), "TTFT and steps take 0.700000 s, end to end 0.600000 s"),
        (stepped(verify_s=[0.2, 0.2]), "parts of steps take"),
    ],
)
def test_times_that_contradict_each_other(record: RequestRecord, message: str) -> None:
    with pytest.raises(InvariantError, match="item-1") as caught:
        check_times(record)
    assert message in str(caught.value)


def test_step_itl_over_al_is_tpot_but_for_the_prefill_of_others() -> None:
    """Request 0 waits half a second for 1's prefill; the rest of its time is steps."""
    records = [
        make_request(AR, 0, [1] * 10, ttft_s=0.5, e2e_s=0.5 + 1.0 + 0.5),
        make_request(AR, 1, [1] * 10, ttft_s=0.5, queue_s=0.5, e2e_s=1.5),
    ]
    assert unaccounted(records) == pytest.approx(0, abs=1e-9)


def test_time_that_is_neither_step_nor_prefill_shows() -> None:
    record = make_request(AR, 0, [1] * 10, ttft_s=0.5, e2e_s=2.5)
    assert unaccounted([record]) == pytest.approx(0.5)
    assert unaccounted([make_request(AR, 0, [])]) is None


def groups_of(*requests: RequestRecord, passed: bool = False, **plan: int) -> None:
    run = make_run(**plan)  # type: ignore[arg-type]
    build_groups(RunData(run, list(requests), [make_arm(AR)] if passed else [], []))


def test_a_passed_pass_has_all_its_requests() -> None:
    with pytest.raises(InvariantError, match=r"repeat 0, is PASSED with 1 of 2 requests"):
        groups_of(make_request(AR, 0, [1]), passed=True)


def test_records_outside_the_plan_are_refused() -> None:
    with pytest.raises(InvariantError, match="magic on govreport"):
        groups_of(make_request("magic", 0, [1]))
    with pytest.raises(InvariantError, match="codeelo"):
        groups_of(make_request(AR, 0, [1], dataset="codeelo"))
    with pytest.raises(InvariantError, match="prompt 7"):
        groups_of(make_request(AR, 7, [1]))
    with pytest.raises(InvariantError, match=r"repeat 1, run\.json plans 1"):
        groups_of(make_request(AR, 0, [1], repeat=1))


def test_a_bad_record_stops_the_figures() -> None:
    with pytest.raises(InvariantError, match="gamma 3"):
        groups_of(good(), gamma=3)


def test_a_plan_without_batch_size_is_named() -> None:
    run = make_run(config={"repeats": 1})
    with pytest.raises(DataError, match="batch_size"):
        build_groups(RunData(run, [], [make_arm(AR, status=Status.OOM)], []))
