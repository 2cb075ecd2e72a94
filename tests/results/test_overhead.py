"""The time split: from a profiler trace where there is one, with its second measurement."""

import pytest

from specbench.results.cells import build_groups
from specbench.results.metrics import Row
from specbench.results.reading import RunData
from specbench.results.records import OverheadRecord
from specbench.results.tables import build_rows, columns_of
from tests.support.records import AR, make_arm, make_request, make_run

LISTED = (
    "method",
    "variant",
    "dataset",
    "model",
    "batch",
    "context",
    "gamma",
    "kept_ratio",
    "spec_decode_acceptance_length",
    "draft_ms",
    "verify_ms",
    "selection_ms",
    "sampling_ms",
    "other_ms",
    "iteration_ms",
    "selection_percent",
    "selection_trace_ms",
    "break_even_al",
    "modelled_speedup",
    "draft_roofline",
    "iteration_roofline",
)


def rows(*overheads: OverheadRecord) -> dict[str, Row]:
    """Two arms whose steps take 100 and 200 ms, without timers."""
    run = make_run()
    requests = [make_request(AR, i, [1] * 4, split=None) for i in range(2)]
    requests += [
        make_request("vegas", i, [3, 3], drafted=[4, 4], step_s=0.2, split=None) for i in range(2)
    ]
    data = RunData(run, requests, [make_arm(AR), make_arm("vegas")], [], [], list(overheads))
    return {row["arm"]: row for row in build_rows(run, build_groups(data))}


def traced(arm: str, **changes: float | None) -> OverheadRecord:
    """Parts that sum to 10 ms; selection is 0.4 by one measurement and 0.43 by the other."""
    fields = {
        "iterations": 50,
        "iteration_ms": 10.0,
        "draft_ms": 6.0,
        "verify_ms": 3.0,
        "selection_ms": 0.4,
        "sampling_ms": 0.1,
        "other_ms": 0.5,
        "selection_trace_ms": 0.43,
    }
    return OverheadRecord(arm=arm, dataset="govreport", **(fields | changes))


def test_the_table_has_the_columns_that_say_what_was_measured() -> None:
    assert set(LISTED) <= set(columns_of("overhead"))
    row = rows()["vegas"]
    assert (row["batch"], row["context"], row["gamma"]) == (2, 100, 4)
    assert row["model"] == "tiny-llama"


def test_a_trace_gives_the_split_and_its_cross_check() -> None:
    row = rows(traced("vegas"))["vegas"]
    assert row["iteration_ms"] == 10.0
    assert row["draft_ms"] == 6.0
    assert row["selection_percent"] == pytest.approx(4)
    assert row["selection_trace_ms"] == 0.43
    assert row["selection_agreement"] == pytest.approx(0.003)
    assert row["split_sum_error"] == pytest.approx(0)
    assert row["overhead_source"] == "profiler trace"
    # the wall time of the user's loop decides what pays, not the trace
    assert row["break_even_al"] == pytest.approx(2)


def test_device_time_is_held_against_what_a_copy_takes() -> None:
    moved = {"draft_bytes": 20_000_000_000, "iteration_bytes": 32_000_000_000}
    row = rows(traced("vegas", **moved, copy_gb_per_s=4000.0))["vegas"]
    assert row["draft_roofline"] == pytest.approx(6e-3 / (20e9 / 4e12))
    assert row["iteration_roofline"] == pytest.approx(10e-3 / (32e9 / 4e12))
    # 100 ms without drafts, 200 with them
    assert row["modelled_speedup"] == pytest.approx(6.24 / 2)
    for unknown in (traced("vegas"), traced("vegas", copy_gb_per_s=4000.0)):
        row = rows(unknown)["vegas"]
        assert row["draft_roofline"] is None or "draft_roofline" not in row
        assert row["modelled_speedup"] == pytest.approx(6.24 / 2)


def test_parts_that_miss_the_iteration_show() -> None:
    assert rows(traced("vegas", other_ms=0.0))["vegas"]["split_sum_error"] == pytest.approx(0.05)


def test_without_timers_or_trace_the_split_is_unknown() -> None:
    row = rows()["vegas"]
    assert row["iteration_ms"] == pytest.approx(200)
    unknown = ("draft_ms", "selection_percent", "selection_trace_ms", "overhead_source")
    assert all(row[key] is None for key in unknown)


def test_a_baseline_has_a_split_and_no_selection_share() -> None:
    row = rows(traced(AR, selection_trace_ms=None))[AR]
    assert row["verify_ms"] == 3.0
    assert row["selection_percent"] is None
    assert row["selection_agreement"] is None
