"""Figures against numbers worked out by hand, and what must hold for any records."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.results.cells import Group, build_groups
from specbench.results.metrics import Row
from specbench.results.overhead import TIME_SPLIT
from specbench.results.reading import RunData
from specbench.results.records import (
    ArmRecord,
    LosslessRecord,
    RequestRecord,
    RunRecord,
    Status,
)
from specbench.results.tables import METRICS, build_rows
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict

KNOWN_VLLM_KEYS = {
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "duration",
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "mean_e2el_ms",
    "spec_decode_acceptance_length",
    "spec_decode_acceptance_rate",
    "spec_decode_num_drafts",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
    "spec_decode_per_position_acceptance_rates",
}


def rows_of(
    run: RunRecord,
    requests: list[RequestRecord],
    passes: list[ArmRecord] | None = None,
    verdicts: list[LosslessRecord] | None = None,
) -> dict[str, Row]:
    """The rows by arm; every planned pass PASSED unless `passes` says otherwise."""
    if passes is None:
        passes = [
            make_arm(arm.name, repeat)
            for arm in run.arms
            for repeat in range(run.config["repeats"])
        ]
    data = RunData(run, requests, passes, verdicts or [])
    return {row["arm"]: row for row in build_rows(run, build_groups(data))}


def simple() -> dict[str, Row]:
    """Two prompts, batch 2. Autoregressive: 0.1 s a step. Vegas, gamma 4: 0.2 s a step."""
    split = (0.08, 0.09, 0.01, 0.005)
    return rows_of(
        make_run(),
        [
            make_request(AR, 0, [1] * 8, ttft_s=0.5),
            make_request(AR, 1, [1] * 8, ttft_s=0.3),
            make_request(
                "vegas", 0, [5, 3], drafted=[4, 2], accepted=[4, 2], step_s=0.2, split=split
            ),
            make_request(
                "vegas",
                1,
                [1, 3, 2, 2],
                drafted=[4, 4, 4, 1],
                accepted=[0, 2, 1, 1],
                step_s=0.2,
                running=[2, 2, 1, 1],
                ttft_s=0.3,
                split=split,
            ),
        ],
    )


def test_every_figure_of_the_baseline_by_hand() -> None:
    row = simple()[AR]
    assert row["status"] == "PASSED"
    # Both rows commit a token each in 0.1 s.
    assert row["output_throughput"] == pytest.approx(20)
    assert row["mean_ttft_ms"] == pytest.approx(400)
    assert row["median_ttft_ms"] == pytest.approx(400)
    assert row["std_ttft_ms"] == pytest.approx(100 * math.sqrt(2))
    assert row["mean_tpot_ms"] == pytest.approx(100)
    assert row["mean_itl_ms"] == pytest.approx(100)
    assert row["mean_e2el_ms"] == pytest.approx(1200)
    assert row["completed"] == 2
    assert row["total_input_tokens"] == 200
    assert row["total_output_tokens"] == 18
    assert row["duration"] == pytest.approx(1.3)
    assert row["request_throughput"] == pytest.approx(2 / 1.3)
    assert row["e2e_output_throughput"] == pytest.approx(18 / 1.3)
    assert row["prefill_throughput"] == pytest.approx(200 / 0.64)
    assert row["mean_running_batch"] == pytest.approx(2)
    assert row["iteration_ms"] == pytest.approx(100)
    assert row["iterations"] == pytest.approx(8)
    assert row["speedup_over_autoregressive"] == 1


def test_every_figure_of_a_drafting_arm_by_hand() -> None:
    row = simple()["vegas"]
    # Steps with both running: 5 + 3 and 1 + 3 tokens, 4 half steps of 0.2 s.
    assert row["output_throughput"] == pytest.approx(12 / 0.4)
    assert row["speedup_over_autoregressive"] == pytest.approx(1.5)
    assert row["spec_decode_acceptance_length"] == pytest.approx(16 / 6)
    assert row["mean_request_acceptance_length"] == pytest.approx((4 + 2) / 2)
    assert row["num_verify_steps"] == 6
    assert row["acceptance_histogram"] == [1, 2, 2, 0, 1]
    assert row["spec_decode_num_drafts"] == 6
    assert row["spec_decode_draft_tokens"] == 19
    assert row["spec_decode_accepted_tokens"] == 10
    assert row["spec_decode_acceptance_rate"] == pytest.approx(10 / 19)
    # Drafted at least i: 6, 5, 4, 4 steps; accepted at least i: 5, 3, 1, 1.
    cumulative = row["spec_decode_per_position_acceptance_rates"]
    assert cumulative == pytest.approx([5 / 6, 3 / 5, 1 / 4, 1 / 4])
    # Of the steps that accepted i-1 and drafted i: 6, 4, 2, 1.
    conditional = row["conditional_per_position_acceptance_rates"]
    assert conditional == pytest.approx([5 / 6, 3 / 4, 1 / 2, 1])
    assert row["mean_itl_ms"] == pytest.approx(200)
    assert row["mean_tpot_ms"] == pytest.approx((0.4 / 8 + 0.8 / 8) / 2 * 1e3)
    assert row["mean_running_batch"] == pytest.approx(1.2 / 0.8)
    assert row["iteration_ms"] == pytest.approx(200)
    assert row["draft_ms"] == pytest.approx(80)
    assert row["verify_ms"] == pytest.approx(90)
    assert row["selection_ms"] == pytest.approx(10)
    assert row["sampling_ms"] == pytest.approx(5)
    assert row["other_ms"] == pytest.approx(15)
    assert row["selection_percent"] == pytest.approx(5)
    assert row["break_even_al"] == pytest.approx(2)
    assert row["overhead_source"] == "timers (CPU)"


def test_keys_are_those_of_vllm_bench() -> None:
    assert set(simple()[AR]) >= KNOWN_VLLM_KEYS


def test_speculation_off_is_null_and_never_zero_or_one() -> None:
    """vllm#15958."""
    row = simple()[AR]
    spec = [key for key in row if key.startswith("spec_decode") or "acceptance" in key]
    assert len(spec) >= 8
    assert [key for key in spec if row[key] is not None] == []
    assert row["gamma"] is None
    assert row["selection_percent"] is None
    assert row["break_even_al"] is None
    assert row["speedup_over_vllm"] is None
    assert row["peak_memory_bytes"] is None


def test_eos_inside_the_accepted_prefix_counts_what_was_committed() -> None:
    """vllm#56101: five drafts accepted, but the third is EOS: three tokens, no bonus."""
    run = make_run(prompts=1, batch_size=1, gamma=5, arms=("vegas",))
    request = make_request("vegas", 0, [3], drafted=[5], accepted=[5], running=1)
    row = rows_of(run, [request])["vegas"]
    assert row["spec_decode_acceptance_length"] == 3
    assert row["acceptance_histogram"] == [0, 0, 0, 1, 0, 0]
    assert row["spec_decode_accepted_tokens"] == 3
    assert row["spec_decode_per_position_acceptance_rates"] == [1, 1, 1, 0, 0]


def test_a_bonus_cut_off_by_the_limit_takes_no_accepted_draft_along() -> None:
    run = make_run(prompts=1, batch_size=1, arms=("vegas",))
    request = make_request("vegas", 0, [2], drafted=[4], accepted=[2], running=1)
    row = rows_of(run, [request])["vegas"]
    assert row["acceptance_histogram"] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("gamma", [0, 3])
def test_outputs_of_one_token_and_no_drafts(gamma: int) -> None:
    """vllm PR#24322: no step, no draft: nothing divides by zero, and nothing is invented."""
    run = make_run(prompts=1, batch_size=1, gamma=gamma)
    rows = rows_of(run, [make_request(AR, 0, []), make_request("vegas", 0, [])])
    for row in rows.values():
        assert row["status"] == "PASSED"
        assert row["mean_ttft_ms"] == pytest.approx(500)
        for key in ("output_throughput", "mean_tpot_ms", "mean_itl_ms", "mean_running_batch"):
            assert row[key] is None, key
        assert row["spec_decode_acceptance_length"] is None
        assert row["spec_decode_acceptance_rate"] is None
        assert row["iteration_ms"] is None
        assert row["speedup_over_autoregressive"] is None


def test_drafts_that_were_never_accepted_are_zero_not_null() -> None:
    run = make_run(prompts=1, batch_size=1, arms=("vegas",))
    request = make_request("vegas", 0, [1, 1], drafted=[4, 4], running=1)
    row = rows_of(run, [request])["vegas"]
    assert row["spec_decode_acceptance_rate"] == 0
    assert row["spec_decode_acceptance_length"] == 1
    assert row["spec_decode_per_position_acceptance_rates"] == [0, 0, 0, 0]
    assert row["conditional_per_position_acceptance_rates"] == [0, None, None, None]


def test_only_steps_with_the_batch_full_are_decode() -> None:
    """Three prompts in a batch of 2: the last one's lonely steps, slow or fast, do not count."""
    run = make_run(prompts=3, arms=(AR,))
    requests = [
        make_request(AR, 0, [1, 1], running=2),
        make_request(AR, 1, [1, 1, 1, 1], running=2),
        make_request(
            AR, 2, [1] * 4, running=[2, 2, 1, 1], step_s=[0.1, 0.1, 7.0, 7.0], queue_s=0.7
        ),
    ]
    assert rows_of(run, requests)[AR]["output_throughput"] == pytest.approx(20)


def test_a_batch_larger_than_the_prompt_list_is_full_with_all_of_them() -> None:
    run = make_run(prompts=1, batch_size=64, arms=(AR,))
    row = rows_of(run, [make_request(AR, 0, [1, 1], running=1)])[AR]
    assert row["output_throughput"] == pytest.approx(10)


def test_throughput_is_the_median_over_repeats() -> None:
    run = make_run(prompts=1, batch_size=1, repeats=3)
    requests = [
        make_request(arm, 0, [1], running=1, repeat=repeat, step_s=seconds)
        for arm, times in ((AR, (0.1, 0.2, 1.0)), ("vegas", (0.1, 0.05, 0.5)))
        for repeat, seconds in enumerate(times)
    ]
    rows = rows_of(run, requests)
    assert rows[AR]["output_throughput"] == pytest.approx(5)
    assert rows["vegas"]["output_throughput"] == pytest.approx(10)
    # The paired ratios are 1, 4 and 2.
    assert rows["vegas"]["speedup_over_autoregressive"] == pytest.approx(2)
    assert rows["vegas"]["speedup_over_autoregressive_low"] == pytest.approx(1)
    assert rows["vegas"]["speedup_over_autoregressive_high"] == pytest.approx(4)


def test_speedup_over_vllm_and_over_autoregressive() -> None:
    run = make_run(prompts=1, batch_size=1, arms=(AR, "vllm", "vegas"))
    requests = [
        make_request(AR, 0, [1, 1], running=1, step_s=0.1),
        make_request("vllm", 0, [1, 1], running=1, step_s=0.08),
        make_request("vegas", 0, [1, 1], running=1, step_s=0.05),
    ]
    rows = rows_of(run, requests)
    assert rows["vegas"]["speedup_over_vllm"] == pytest.approx(1.6)
    assert rows["vegas"]["speedup_over_autoregressive"] == pytest.approx(2)
    assert rows[AR]["speedup_over_vllm"] == pytest.approx(0.8)
    assert rows["vllm"]["speedup_over_vllm"] == 1


def test_a_prompt_that_loops_in_one_arm_leaves_every_arm() -> None:
    """dynamo#12918."""
    run = make_run(prompts=2)
    requests = [
        make_request(AR, 0, [1, 1], step_s=0.1),
        make_request(AR, 1, [1, 1], step_s=0.3),
        make_request("vegas", 0, [2], drafted=[4], step_s=0.1),
        make_request("vegas", 1, [5], drafted=[4], step_s=0.1, degenerate=True),
    ]
    rows = rows_of(run, requests)
    assert rows["vegas"]["spec_decode_acceptance_length"] == 2
    assert rows["vegas"]["acceptance_histogram"] == [0, 1, 0, 0, 0]
    # Half of each step belongs to the looping request, tokens and time alike.
    assert rows["vegas"]["output_throughput"] == pytest.approx(40)
    assert rows[AR]["output_throughput"] == pytest.approx(20)
    assert rows[AR]["mean_itl_ms"] == pytest.approx(100)
    for row in rows.values():
        assert row["excluded_degenerate"] == 1
        assert row["completed"] == 2
        assert row["degenerate_share"] == 0.5
        assert row["all_degenerate"] is False


def test_where_everything_loops_the_figures_stand_and_are_marked() -> None:
    run = make_run(prompts=1, batch_size=1, arms=("vegas",))
    request = make_request("vegas", 0, [5], drafted=[4], running=1, degenerate=True)
    row = rows_of(run, [request])["vegas"]
    assert row["spec_decode_acceptance_length"] == 5
    assert row["degenerate_share"] == 1
    assert row["all_degenerate"] is True
    assert row["excluded_degenerate"] == 0


@pytest.mark.parametrize("status", [Status.OOM, Status.RUNTIME_ERROR, Status.TIMEOUT])
def test_an_arm_that_failed_shows_its_status_and_no_figure(status: Status) -> None:
    run = make_run(prompts=1, batch_size=1, repeats=2)
    requests = [make_request(arm, 0, [1], running=1) for arm in (AR, "vegas")]
    requests += [make_request(AR, 0, [1], running=1, repeat=1)]
    passes = [make_arm(AR), make_arm(AR, 1), make_arm("vegas"), make_arm("vegas", 1, status)]
    rows = rows_of(run, requests, passes)
    assert rows["vegas"]["status"] == status
    figures = [name for metric in METRICS for name in metric.columns]
    assert [name for name in figures if rows["vegas"][name] is not None] == []
    assert rows[AR]["output_throughput"] == pytest.approx(10)


def test_no_speedup_over_a_baseline_that_failed() -> None:
    run = make_run(prompts=1, batch_size=1)
    passes = [make_arm(AR, status=Status.OOM), make_arm("vegas")]
    rows = rows_of(run, [make_request("vegas", 0, [1], running=1)], passes)
    assert rows["vegas"]["output_throughput"] == pytest.approx(10)
    assert rows["vegas"]["speedup_over_autoregressive"] is None
    assert rows["vegas"]["break_even_al"] is None


def test_an_unfinished_arm_has_no_status_and_no_figure() -> None:
    run = make_run(prompts=1, batch_size=1, repeats=2, arms=(AR,))
    row = rows_of(run, [make_request(AR, 0, [1], running=1)], [make_arm(AR)])[AR]
    assert row["status"] is None
    assert row["output_throughput"] is None


def test_one_lossy_request_makes_the_arm_lossy_and_keeps_its_figures() -> None:
    run = make_run(prompts=2, batch_size=2)
    requests = [make_request(arm, i, [1]) for arm in (AR, "vegas") for i in range(2)]
    verdicts = [make_verdict("vegas", 0), make_verdict("vegas", 1, lossless=False)]
    row = rows_of(run, requests, verdicts=verdicts)["vegas"]
    assert row["status"] == "LOSSY"
    assert row["lossless"] == "exact 1/2"
    assert row["output_throughput"] == pytest.approx(20)


def test_a_method_that_claims_no_losslessness_is_not_lossy() -> None:
    run = make_run(prompts=1, batch_size=1, arms=(AR, "vllm"))
    requests = [make_request(arm, 0, [1], running=1) for arm in (AR, "vllm")]
    rows = rows_of(run, requests, verdicts=[make_verdict("vllm", 0, lossless=False)])
    assert rows["vllm"]["status"] == "PASSED"
    assert rows["vllm"]["lossless"] == "exact 0/1"


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ([], None),
        ([make_verdict("vegas", 0, None)], "unchecked"),
        ([make_verdict("vegas", 0), make_verdict("vegas", 1, None)], "exact 1/1, 1 unchecked"),
    ],
)
def test_the_verdict_says_how_much_was_checked(
    verdicts: list[LosslessRecord], text: str | None
) -> None:
    run = make_run(prompts=2, arms=("vegas",))
    requests = [make_request("vegas", i, [1]) for i in range(2)]
    assert rows_of(run, requests, verdicts=verdicts)["vegas"]["lossless"] == text


def test_dummy_weights_show_step_times_only() -> None:
    run = make_run(prompts=1, batch_size=1, model={"spec": "dummy:tiny", "dummy": True})
    requests = [
        make_request(AR, 0, [1, 1], running=1),
        make_request("vegas", 0, [2], drafted=[4], running=1, step_s=0.3),
    ]
    rows = rows_of(run, requests)
    vegas = rows["vegas"]
    for key in (
        "output_throughput",
        "e2e_output_throughput",
        "speedup_over_autoregressive",
        "spec_decode_acceptance_length",
        "acceptance_histogram",
    ):
        assert vegas[key] is None, key
    assert vegas["iteration_ms"] == pytest.approx(300)
    assert vegas["break_even_al"] == pytest.approx(3)
    assert vegas["dummy_weights"] is True
    assert rows[AR]["output_throughput"] == pytest.approx(10)


def test_a_resumed_repeat_adds_up_its_processes() -> None:
    run = make_run(prompts=2, batch_size=1, arms=(AR,))
    requests = [
        make_request(AR, 0, [1, 1], running=1),
        make_request(AR, 1, [1, 1], running=1, segment=1),
    ]
    assert rows_of(run, requests)[AR]["duration"] == pytest.approx(1.4)


def test_without_a_baseline_there_is_no_speedup() -> None:
    run = make_run(prompts=1, batch_size=1, arms=("vegas",))
    row = rows_of(run, [make_request("vegas", 0, [1], running=1)])["vegas"]
    assert row["speedup_over_autoregressive"] is None
    assert row["break_even_al"] is None


@st.composite
def drafting(draw: st.DrawFn) -> tuple[int, list[RequestRecord]]:
    """Any records that an engine may write for one arm, gamma and batch."""
    gamma = draw(st.integers(1, 6))
    requests = []
    for index in range(draw(st.integers(1, 4))):
        drafted = draw(st.lists(st.integers(0, gamma), max_size=12))
        accepted = [draw(st.integers(0, d)) for d in drafted]
        committed = [a + 1 for a in accepted]
        if committed:
            committed[-1] = draw(st.integers(1, committed[-1]))
        seconds = [draw(st.floats(1e-4, 1.0)) for _ in drafted]
        request = make_request(
            "vegas", index, committed, drafted=drafted, accepted=accepted, step_s=seconds, running=1
        )
        requests.append(request)
    return gamma, requests


@given(drafting())
def test_what_holds_for_any_records(case: tuple[int, list[RequestRecord]]) -> None:
    gamma, requests = case
    run = make_run(prompts=len(requests), batch_size=1, gamma=gamma, arms=("vegas",))
    row = rows_of(run, requests)["vegas"]
    steps = sum(len(r.committed) for r in requests)
    tokens = sum(sum(r.committed) for r in requests)
    histogram = row["acceptance_histogram"]
    assert sum(histogram) == steps == row["num_verify_steps"]
    assert len(histogram) == gamma + 1
    assert sum(j * count for j, count in enumerate(histogram)) == row["spec_decode_accepted_tokens"]
    assert row["total_output_tokens"] == tokens + len(requests)
    if not steps:
        assert row["spec_decode_acceptance_length"] is None
        return
    length = row["spec_decode_acceptance_length"]
    assert 1 <= length <= gamma + 1
    assert 1 <= row["mean_request_acceptance_length"] <= gamma + 1
    rates = row["spec_decode_per_position_acceptance_rates"]
    assert all(rate is None or 0 <= rate <= 1 for rate in rates)
    assert (row["spec_decode_acceptance_rate"] is None) == (row["spec_decode_draft_tokens"] == 0)
    # Alone in its batch a request never waits: step ITL / AL is the mean time a token.
    itl = row["mean_itl_ms"] / length
    seconds = sum(sum(r.times.steps.step_s) for r in requests)
    assert itl == pytest.approx(1e3 * seconds / tokens)
    assert row["output_throughput"] == pytest.approx(tokens / seconds)
    assert row["output_throughput_low"] is None or (
        row["output_throughput_low"] <= row["output_throughput_high"]
    )
    assert row["mean_running_batch"] == pytest.approx(1)
    assert row["iterations"] == pytest.approx(steps, abs=1e-3)


@given(st.floats(0.01, 100), drafting())
def test_a_uniformly_faster_machine_changes_no_ratio(
    factor: float, case: tuple[int, list[RequestRecord]]
) -> None:
    gamma, requests = case
    run = make_run(prompts=len(requests), batch_size=1, gamma=gamma)

    def scaled(by: float) -> Row:
        records = [
            make_request(
                "vegas",
                r.index,
                r.committed,
                drafted=r.drafted,
                accepted=r.accepted,
                step_s=[by * s for s in r.times.steps.step_s],
                running=1,
            )
            for r in requests
        ]
        records += [
            make_request(AR, r.index, [1] * sum(r.committed), step_s=by * 0.1, running=1)
            for r in requests
        ]
        return rows_of(run, records)["vegas"]

    one, other = scaled(1.0), scaled(factor)
    for key in ("speedup_over_autoregressive", "break_even_al", "spec_decode_acceptance_length"):
        assert other[key] == (None if one[key] is None else pytest.approx(one[key])), key


def test_the_overhead_table_needs_a_full_batch() -> None:
    run = make_run(prompts=2, batch_size=2, arms=("vegas",))
    requests = [make_request("vegas", i, [1], running=1) for i in range(2)]
    data = RunData(run, requests, [make_arm("vegas")], [])
    (group,) = build_groups(data)
    assert isinstance(group, Group)
    row = TIME_SPLIT[0].row(group.cells[0], group)
    assert set(row.values()) == {None}


def test_an_unknown_split_is_null_and_the_iteration_is_known() -> None:
    """A GPU's steps come without timers: no part may read 0."""
    requests = [
        make_request(AR, 0, [1, 1], step_s=0.05, split=None, running=1),
        make_request("vegas", 0, [2, 2], drafted=[2, 2], split=None, running=1),
    ]
    row = rows_of(make_run(prompts=1, repeats=1), requests)["vegas"]
    assert row["iteration_ms"] == pytest.approx(100)
    assert row["break_even_al"] == pytest.approx(2)
    unknown = ["draft_ms", "verify_ms", "selection_ms", "sampling_ms", "other_ms"]
    for name in (*unknown, "selection_percent", "overhead_source"):
        assert row[name] is None
