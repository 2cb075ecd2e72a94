"""Reports on crashes: what a run has measured is on disk, and what the crash tore is not read."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.results.reading import (
    ARMS,
    LOSSLESS,
    OVERHEAD,
    REQUESTS,
    SCORES,
    mend_tail,
    read_folder,
)
from specbench.results.records import OverheadRecord, RunRecord, ScoreRecord
from specbench.results.report import summarise
from specbench.results.store import RunStore
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict

FILES = [REQUESTS, ARMS, LOSSLESS, SCORES, OVERHEAD]


def whole_run(folder: Path) -> RunRecord:
    """A finished run that holds a line at least in every file."""
    run = make_run(prompts=2)
    with RunStore.create(folder, run) as store:
        for arm in (AR, "vegas"):
            for index in (0, 1):
                store.append_request(make_request(arm, index, [1, 1]))
            store.append_arm(make_arm(arm))
        store.append_lossless(make_verdict("vegas", 0))
        store.append_lossless(make_verdict("vegas", 1))
        score = {"dataset": "govreport", "repeat": 0, "score": 0.5}
        store.append_score(ScoreRecord(arm=AR, index=0, **score))
        store.append_score(ScoreRecord(arm=AR, index=1, **score))
        times = dict.fromkeys(("iteration", "draft", "verify", "selection", "sampling", "other"), 1)
        store.append_overhead(
            OverheadRecord(
                arm="vegas",
                dataset="govreport",
                iterations=9,
                selection_trace_ms=None,
                **{f"{name}_ms": value for name, value in times.items()},
            )
        )
    return run


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("tail", [b"\0" * 600, b'{"schema_version": 2, "arm": "ve', b"\xc3", b"{"])
def test_a_torn_last_line_ends_neither_report_nor_resume(
    tmp_path: Path, name: str, tail: bytes
) -> None:
    """vLLM's sweep (review of PR#32337): --resume loads what exists; a file cut short aborted it.

    A line cut anywhere, within a character too, and the zeros that a file system leaves of a block
    that it had promised. Reading passes over them, resuming removes them.
    """
    run = whole_run(tmp_path / "run")
    file = tmp_path / "run" / name
    kept = file.read_bytes()
    file.write_bytes(kept + tail)
    assert summarise(tmp_path / "run").exit_status == 0
    assert file.read_bytes() == kept + tail
    with RunStore.resume(tmp_path / "run", run) as store:
        assert len(store.load_requests()) == 4
    assert file.read_bytes() == kept


@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_file_cut_anywhere_keeps_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """lm-eval#2533: hours were lost to a crash. Here it is the requests in flight."""
    file = tmp_path_factory.mktemp("cut") / REQUESTS
    records = [make_request(AR, i, [1] * i) for i in range(3)]
    content = b"".join(record.model_dump_json().encode() + b"\n" for record in records)
    at = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:at])
    mend_tail(file)
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    # a whole record that lacks only its newline is a whole record
    whole = sum(at >= end - 1 for end in ends)
    assert file.read_bytes() == b"".join(content.splitlines(keepends=True)[:whole])


def test_a_finished_run_resumes_into_itself(tmp_path: Path) -> None:
    """lighteval#880, lm-eval#2140: with everything cached there was nothing to do, and a crash."""
    run = whole_run(tmp_path / "run")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in FILES}
    first = summarise(tmp_path / "run")
    with RunStore.resume(tmp_path / "run", run) as store:
        assert len(store.load_arms()) == 2
    assert {name: (tmp_path / "run" / name).read_bytes() for name in FILES} == before
    assert summarise(tmp_path / "run").rows == first.rows


def test_a_crash_before_the_first_request_leaves_a_run(tmp_path: Path) -> None:
    """SpecForge writes once, at the end. Here the plan is on disk before anything runs."""
    run = make_run()
    RunStore.create(tmp_path / "run", run).close()
    assert read_folder(tmp_path / "run").run == run
    summary = summarise(tmp_path / "run")
    assert summary.exit_status == 3
    assert all("unfinished, 0 of 1 repeats ended" in line for line in summary.warnings[-2:])
