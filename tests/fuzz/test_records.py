"""A run's folder: a report, or one message that names the file; and what --resume makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import DataError, SpecbenchError
from specbench.results.page import render_page
from specbench.results.reading import read_folder, read_run
from specbench.results.records import (
    OverheadRecord,
    RefusedDataset,
    RunRecord,
    ScoreRecord,
    ServedRecord,
    SpecCounters,
    Status,
)
from specbench.results.report import summarise
from specbench.results.store import RunStore
from specbench.results.summary_table import to_latex, to_markdown, value_frame
from specbench.results.tables import to_csv
from tests.support.hostile import bounded, damaged, examples, mutated, outcome, to_json
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict

LINES = ("requests.jsonl", "arms.jsonl", "lossless.jsonl", "scores.jsonl", "overhead.jsonl")
SERVED = ServedRecord(
    version="vllm 0.30.0",
    settings={"block_size": 16},
    prompt_tokens=100,
    fill_cache_hits=0,
    decode_cache_hits=0,
    preemptions=0,
    spec_decode=SpecCounters(
        num_drafts=2, draft_tokens=8, accepted_tokens=3, accepted_per_position=[2, 1, 0, 0]
    ),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of record."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    refused = RefusedDataset(name="aime25", status=Status.CONTEXT_TOO_LONG, message="too long")
    plan = make_run(arms=(AR, "vegas", "vllm"), refused=[refused], choices=["a: b"], warnings=["w"])
    plan.arms[2].parameters["gamma"] = 4
    plan.environment.update(git={"commit": "abcdef0", "dirty": False}, argv=["specbench", "run"])
    with RunStore.create(folder, plan) as store:
        for arm in plan.arms:
            for index in range(2):
                committed = [1] * 6 if arm.name == AR else [4, 2]
                drafted = [0] * 6 if arm.name == AR else [4, 4]
                store.append_request(make_request(arm.name, index, committed, drafted=drafted))
                if arm.name == "vegas":
                    store.append_lossless(make_verdict(arm.name, index))
                score = ScoreRecord(
                    arm=arm.name, dataset="govreport", repeat=0, index=index, score=0.5
                )
                store.append_score(score)
            served = SERVED if arm.name == "vllm" else None
            store.append_arm(make_arm(arm.name, served=served, peak_memory_bytes=2**20))
        times = {f"{part}_ms": 1.0 for part in ("draft", "verify", "selection", "sampling")}
        store.append_overhead(
            OverheadRecord(
                arm="vegas", dataset="govreport", iterations=3, iteration_ms=5.0, other_ms=1.0,
                selection_trace_ms=0.9, **times,
            )
        )  # fmt: skip
    return folder


def copied(run: Path, folder: Path, name: str, content: bytes) -> Path:
    """`folder` with the records of `run`, but `content` as `name`."""
    folder.mkdir(exist_ok=True)
    for file in run.iterdir():
        if file.suffix in (".json", ".jsonl"):
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / name).write_bytes(content)
    return folder


def report(folder: Path) -> None:
    summary = summarise(folder)
    for frame in [*summary.frames.values(), value_frame(summary.rows)]:
        to_csv(frame)
    to_markdown(summary.rows, summary.header, summary.warnings).encode()
    to_latex(summary.rows, summary.header).encode()
    render_page(summary, {}).encode()


def test_the_whole_folder_gives_a_report(run: Path) -> None:
    with bounded():
        report(run)


# A message names the file, or the record: its arm, its dataset or run.json.
NAMED = (".json", "vegas", "vllm", AR, "govreport")


@examples(40)
@given(data=st.data())
def test_a_changed_run(data: st.DataObject, run: Path, tmp_path: Path) -> None:
    valid = json.loads((run / "run.json").read_bytes())
    content = to_json(data.draw(mutated(valid))).encode()
    folder = copied(run, tmp_path / "run", "run.json", content)
    outcome(lambda: report(folder), *NAMED)


@pytest.mark.parametrize("name", LINES)
@examples(12)
@given(data=st.data())
def test_a_changed_record(name: str, data: st.DataObject, run: Path, tmp_path: Path) -> None:
    lines = (run / name).read_bytes().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = to_json(data.draw(mutated(json.loads(lines[at])))).encode()
    folder = copied(run, tmp_path / "run", name, b"\n".join(lines) + b"\n")
    outcome(lambda: report(folder), *NAMED)


def resume(folder: Path, plan: RunRecord) -> None:
    with RunStore.resume(folder, plan) as store:
        store.load_requests()
        assert store.segment >= 0


@pytest.mark.parametrize("name", ["run.json", *LINES])
@examples(10)
@given(data=st.data())
def test_a_damaged_file(name: str, data: st.DataObject, run: Path, tmp_path: Path) -> None:
    plan = read_run(run)
    content = data.draw(damaged((run / name).read_bytes()))
    folder = copied(run, tmp_path / "run", name, content)
    outcome(lambda: report(folder), *NAMED)
    outcome(lambda: resume(folder, plan), *NAMED, "resume")


@examples(30)
@given(data=st.data())
def test_records_of_the_first_version(data: st.DataObject, run: Path, tmp_path: Path) -> None:
    valid = json.loads((run / "run.json").read_bytes()) | {"schema_version": 1}
    del valid["refused"], valid["cells"]
    for entry in valid["datasets"]:
        del entry["score"]
    content = to_json(data.draw(mutated(valid))).encode()
    folder = copied(run, tmp_path / "run", "run.json", content)
    outcome(lambda: read_folder(folder), *NAMED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repeats": 10**9}, "config.repeats: Input should be less than or equal to 10000"),
        ({"batch_size": 10**30}, "config.batch_size"),
        ({"temperature": "hot"}, "config.temperature"),
        ({"device": ["cpu"]}, "config.device"),
    ],
)
def test_no_number_of_a_record_is_taken_for_a_size(
    change: dict[str, Any], message: str, run: Path, tmp_path: Path
) -> None:
    valid = json.loads((run / "run.json").read_bytes())
    valid["config"] |= change
    folder = copied(run, tmp_path / "run", "run.json", json.dumps(valid).encode())
    with bounded(), pytest.raises(DataError, match=message):
        report(folder)


def test_a_gamma_beyond_any_use(run: Path, tmp_path: Path) -> None:
    valid = json.loads((run / "run.json").read_bytes())
    valid["arms"][1]["parameters"]["gamma"] = 10**9
    folder = copied(run, tmp_path / "run", "run.json", json.dumps(valid).encode())
    with bounded(), pytest.raises(SpecbenchError, match=r"arms.1.parameters.gamma"):
        report(folder)
