"""What is kept of a run: sums a repeat and a request, and the claimed figures made of them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.errors import DataError
from specbench.results.compact import REPEATS, REQUESTS
from specbench.results.figures import COLUMNS, summarise_figures
from specbench.results.records import ServedRecord, SpecCounters
from specbench.results.report import write_reports
from specbench.results.store import RunStore
from tests.support.records import AR, make_arm, make_request, make_run

COUNTERS = SpecCounters(
    num_drafts=8, draft_tokens=32, accepted_tokens=20, accepted_per_position=[8, 6, 4, 2]
)
SERVED = ServedRecord(
    version="vllm 0.25.1",
    settings={"block_size": 16},
    prompt_tokens=200,
    fill_cache_hits=0,
    decode_cache_hits=190,
    preemptions=0,
    spec_decode=COUNTERS,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two repeats; of vegas's first prompt the output loops, of vLLM the drafts are unknown."""
    run = make_run(arms=(AR, "vegas", "vllm-ngram"), repeats=2)
    with RunStore.create(tmp_path / "run", run) as store:
        for repeat in range(2):
            for index in range(2):
                store.append_request(make_request(AR, index, [1] * 6, step_s=0.1, repeat=repeat))
                vegas = make_request(
                    "vegas",
                    index,
                    [4, 2],
                    drafted=[4, 4],
                    step_s=0.2 + 0.1 * repeat,
                    repeat=repeat,
                    degenerate=index == 0,
                )
                store.append_request(vegas)
                served = make_request("vllm-ngram", index, [4, 1, 1], step_s=0.1, repeat=repeat)
                store.append_request(served.model_copy(update={"drafted": None}))
            store.append_arm(make_arm(AR, repeat))
            store.append_arm(make_arm("vegas", repeat))
            arm = make_arm("vllm-ngram", repeat)
            store.append_arm(arm.model_copy(update={"served": SERVED}))
    write_reports(tmp_path / "run")
    return tmp_path


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / "run" / f"{name}.csv")


def test_a_repeat_is_its_window_of_full_steps(folder: Path) -> None:
    repeats = table(folder, "repeats")
    assert tuple(repeats.columns) == REPEATS
    vegas = repeats[repeats["arm"] == "vegas"].set_index("repeat")
    # the step's time is everybody's, throughput leaves the looping prompt out
    assert vegas["full_steps"].tolist() == [2, 2]
    assert vegas["step_ms"].tolist() == pytest.approx([200, 300])
    assert vegas["healthy_tokens"].tolist() == [6, 6]
    assert vegas["output_throughput"].tolist() == pytest.approx([6 / 0.2, 6 / 0.3])
    assert vegas["acceptance_length"].tolist() == [3, 3]
    assert vegas["engine_version"].isna().all()


def test_what_an_engine_said_of_itself_is_kept(folder: Path) -> None:
    repeats = table(folder, "repeats").set_index("arm")
    row = repeats.loc["vllm-ngram"].iloc[0]
    assert row["engine_version"] == "vllm 0.25.1"
    assert row["decode_cache_hit_rate"] == pytest.approx(0.95)
    assert row["acceptance_length"] == 2
    acceptance = table(folder, "acceptance").set_index("arm").loc["vllm-ngram"]
    assert acceptance["spec_decode_acceptance_length"] == 2
    assert acceptance["drafted_acceptance_length"] == pytest.approx(1 + 20 / 8)
    assert acceptance["spec_decode_acceptance_rate"] == pytest.approx(20 / 32)
    assert acceptance["spec_decode_num_drafts"] == 16  # both repeats
    assert json.loads(acceptance["acceptance_histogram"]) == [0, 4, 4, 4, 4]
    rates = json.loads(acceptance["conditional_per_position_acceptance_rates"])
    assert rates == pytest.approx([1, 6 / 8, 4 / 6, 2 / 4])


def test_a_request_is_its_sums(folder: Path) -> None:
    requests = table(folder, "requests")
    assert tuple(requests.columns) == REQUESTS
    assert len(requests) == 12
    vegas = requests[(requests["arm"] == "vegas") & (requests["repeat"] == 1)].iloc[0]
    assert (vegas["steps"], vegas["committed"], vegas["output_tokens"]) == (2, 6, 7)
    assert vegas["step_seconds"] == pytest.approx(0.6)
    assert json.loads(vegas["acceptance_histogram"])[-2:] == [1, 0]
    other = requests[requests["arm"] == "vllm-ngram"]
    assert other["acceptance_histogram"].isna().all()


def write_figures(folder: Path, *entries: dict[str, Any]) -> None:
    made = []
    for entry in entries:
        where = {key: entry.pop(key) for key in ("arm", "dataset") if key in entry}
        base = {"record": "run", "column": "step_ms", "unit": "ms"}
        made.append(base | {"where": {"arm": "vegas"} | where} | entry)
    (folder / "figures.yaml").write_text(json.dumps(made))


def test_a_figure_over_another_is_their_ratio_in_each_repeat(folder: Path) -> None:
    write_figures(folder, {"id": "a", "over": {"arm": AR}, "unit": "x"})
    figure = pd.read_csv(summarise_figures(folder)).iloc[0]
    assert [figure["value"], figure["low"], figure["high"]] == pytest.approx([2.5, 2, 3])
    write_figures(folder, {"id": "a", "over": {"arm": AR}, "unit": "%", "scale": 100})
    assert pd.read_csv(summarise_figures(folder)).iloc[0]["value"] == pytest.approx(250)
    write_figures(folder, {"id": "a", "scale": "100"})
    with pytest.raises(DataError, match="scale must be a number, not '100'"):
        summarise_figures(folder)
    write_figures(folder, {"id": "a", "over": {"arm": "other"}})
    with pytest.raises(DataError, match=r"no step_ms where \{'arm': 'other'\}"):
        summarise_figures(folder)


def test_a_greatest_figure_is_taken_of_all_arms(folder: Path) -> None:
    write_figures(folder, {"id": "a", "where": {"status": "PASSED"}, "take": "max"})
    figure = pd.read_csv(summarise_figures(folder)).iloc[0]
    known = pd.read_csv(folder / "run" / "repeats.csv")["step_ms"].dropna()
    assert known.nunique() > 1
    assert [figure["value"], figure["low"]] == pytest.approx([known.max(), known.min()])
    for wrong in ({"take": "min"}, {"take": "max", "over": {"arm": AR}}):
        write_figures(folder, {"id": "a", **wrong})
        with pytest.raises(DataError, match="'a': take must be max, without over, low or high"):
            summarise_figures(folder)


def test_a_figure_of_a_training(folder: Path) -> None:
    (folder / "trained").mkdir()
    pd.DataFrame({"step": [0, 1], "seconds": [30.0, 90.0]}).to_csv(
        folder / "trained" / "loss.csv", index=False
    )
    entry = {"id": "a", "record": "trained", "table": "loss.csv", "column": "seconds", "where": {}}
    write_figures(folder, entry | {"take": "max", "scale": 0.5})
    environment = {"argv": ["specbench", "train"], "git": {"commit": "c"}}
    for content in ({"environment": environment}, {"environment": []}, {}):
        (folder / "trained" / "training.json").write_text(json.dumps(content))
        if not content.get("environment"):
            with pytest.raises(DataError, match=r"training\.json is no environment of a run"):
                summarise_figures(folder)
            continue
        figure = pd.read_csv(summarise_figures(folder)).iloc[0]
        assert figure["value"] == pytest.approx(45)
        assert [figure["command"], figure["commit"]] == ["specbench train", "c"]


def test_figures_are_medians_with_their_range(folder: Path) -> None:
    write_figures(folder, {"id": "a"}, {"id": "b", "arm": AR, "dataset": "govreport"})
    path = summarise_figures(folder)
    figures = pd.read_csv(path)
    assert tuple(figures.columns) == COLUMNS
    first = figures.iloc[0]
    assert [first["value"], first["low"], first["high"]] == pytest.approx([250, 200, 300])
    assert first["record"] == f"{folder.name}/run"
    assert figures["id"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "a", "arm": "magicdec"}, "has no step_ms where"),
        ({"id": "a", "column": "speed"}, "has no speed where"),
        ({"id": "a", "record": "nowhere"}, "cannot read .*repeats.csv"),
        ({"id": "a", "column": "preemptions"}, "preemptions is unknown in"),
        ({}, "lacks id"),
    ],
)
def test_a_figure_without_a_record_is_an_error(
    folder: Path, entry: dict[str, str], message: str
) -> None:
    write_figures(folder, entry)
    with pytest.raises(DataError, match=message):
        summarise_figures(folder)


def test_an_id_is_given_once_and_a_failed_arm_has_no_figure(folder: Path) -> None:
    write_figures(folder, {"id": "a"}, {"id": "a"})
    with pytest.raises(DataError, match="given twice: a"):
        summarise_figures(folder)
    text = (folder / "run" / "repeats.csv").read_text()
    (folder / "run" / "repeats.csv").write_text(text.replace("PASSED", "LOSSY"))
    write_figures(folder, {"id": "a"})
    with pytest.raises(DataError, match="did not end PASSED"):
        summarise_figures(folder)
