"""Tunings of several loads: each by itself, one model and one storage, a schedule at the end."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from specbench.bench.loads import split_loads
from specbench.config import TuneConfig
from tests.results.test_page import Tags
from tests.support.folder import write_model, write_prompts
from tests.support.tuning import Called, call, leave_out_plots

OPTIONS: tuple[object, ...] = (
    *("--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 2, "--held-out", 2),
    *("--max-new-tokens", 3, "--min-tokens", 4, "--ratios", "0.3", "--gammas", "1,2"),
    *("--repeats", 1, "--batch-size", "1,2"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and prompts."""
    root = tmp_path_factory.mktemp("loads")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [40 + 9 * i for i in range(8)])
    return root


@pytest.fixture(scope="module")
def told(folder: Path) -> Called:
    """A tuning of two batches, with a worker beside it."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_plots(patch)
        told = call(
            *("tune", *OPTIONS, "--output", "tuned", "--workers", 2, "--threads", 2), cwd=folder
        )
    assert told.status == 0, told.err
    return told


@pytest.fixture
def tuned(told: Called, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder; what a test calls after it draws nothing but the heat map."""
    leave_out_plots(monkeypatch)
    return folder / "tuned"


def test_loads_are_named_by_what_they_differ_in() -> None:
    assert list(split_loads(TuneConfig())) == [""]
    assert list(split_loads(TuneConfig(batch_size=4))) == [""]  # type: ignore[arg-type]
    both = split_loads(TuneConfig(batch_size=(16, 1, 16), context_len=(20_000, 2048)))
    assert list(both) == ["b1-c2048", "b16-c2048", "b1-c20000", "b16-c20000"]
    assert both["b16-c2048"].run_config().batch_size == 16
    assert both["b16-c2048"].run_config().context_len == 2048
    assert list(split_loads(TuneConfig(context_len=(5, 6)))) == ["c5", "c6"]


def test_each_load_has_its_studies_files_and_proof(tuned: Path, told: Called) -> None:
    for load, batch in (("b1", 1), ("b2", 2)):
        assert {"trials.csv", "tuned.yaml", "comparison.csv", "report.html", "final"} <= {
            path.name for path in (tuned / load).iterdir()
        }
        run = json.loads((tuned / load / "final" / "run.json").read_text())
        assert run["config"]["batch_size"] == batch
        trials = pd.read_csv(tuned / load / "trials.csv")
        passed = trials[trials["status"] == "PASSED"]
        assert not passed.duplicated(["step", "kept_ratio", "gamma"]).any()
        assert sorted(passed[passed["step"] == 2]["gamma"]) == [0, 1, 2]
    journal = (tuned / "study.journal").read_text()
    assert "b1/1-ratio-acceptance" in journal
    assert "b2/3-ratio" in journal
    assert "load b2" in told.out


def test_the_table_the_schedule_and_the_page_hold_a_row_a_load(tuned: Path, told: Called) -> None:
    table = pd.read_csv(tuned / "loads.csv")
    assert list(table["batch"]) == [1, 2]
    assert (table["output_throughput"] > 0).all()
    assert (table["over_autoregressive"] > 0).all()
    schedule = yaml.safe_load((tuned / "schedule.yaml").read_text())
    assert (schedule["method"], schedule["settings"]) == ("vegas", {"min_tokens": 4})
    assert [load["batch_size"] for load in schedule["loads"]] == [1, 2]
    assert [load["options"]["gamma"] for load in schedule["loads"]] == list(table["gamma"])
    assert "vegas by load" in told.out
    text = (tuned / "report.html").read_text(encoding="utf-8")
    links = {a["href"] for tag, a in Tags(text).tags if tag == "a" and a["href"][:1] != "#"}
    assert links == {"b1/report.html", "b2/report.html"}
    assert '<figure id="plot-heatmap">' in text


def test_a_finished_table_resumes(tuned: Path, folder: Path) -> None:
    before = [(tuned / load / "trials.csv").read_bytes() for load in ("b1", "b2")]
    again = call("tune", *OPTIONS, "--threads", 2, "--output", "tuned", "--resume", cwd=folder)
    assert again.status == 0, again.err
    assert [(tuned / load / "trials.csv").read_bytes() for load in ("b1", "b2")] == before
    other = call("tune", *OPTIONS[:-1], "1", "--output", "tuned", "--resume", cwd=folder)
    assert other.status == 2
    assert "of the load b1, started with other --batch-size" in other.err


def test_a_run_takes_its_settings_from_the_schedule(tuned: Path, folder: Path) -> None:
    options = "run", *OPTIONS[:4], "--num-prompts", 3, "--max-new-tokens", 3, "--repeats", 1
    schedule = tuned / "schedule.yaml"
    ran = call(
        *options, "--batch-size", 3, "--schedule", schedule, "--output", "planned", cwd=folder
    )
    assert ran.status == 0, ran.err
    run = json.loads((folder / "planned" / "run.json").read_text())
    (said,) = [line for line in run["choices"] if "schedule" in line]
    assert "nearest load (batch 2, " in said
    assert "batch 3 is outside the measured 1 to 2" in said
    chosen = yaml.safe_load(schedule.read_text())["loads"][1]["options"]
    parameters = run["arms"][1]["parameters"]
    assert {name: parameters[name] for name in chosen} == chosen
    assert parameters["min_tokens"] == 4
    refused = call(*options, "--schedule", schedule, "--gamma", 3, cwd=folder)
    assert (refused.status, "--gamma is what --schedule chooses" in refused.err) == (2, True)


def test_a_load_without_a_choice_does_not_end_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.engine import acceptance

    leave_out_plots(monkeypatch)
    leading = acceptance._leading

    def wrong_alone(stands, allowed):  # type: ignore[no-untyped-def]
        if stands.shape[0] == 1:
            stands[:, 0] = True
        return leading(stands, allowed)

    monkeypatch.setattr(acceptance, "_leading", wrong_alone)
    told = call("tune", *OPTIONS, "--output", "half", cwd=folder)
    assert told.status == 3
    assert "load b1: no choice: step 1" in told.out
    table = pd.read_csv(folder / "half" / "loads.csv")
    assert list(table["choice"].isna()) == [True, False]
    loads = yaml.safe_load((folder / "half" / "schedule.yaml").read_text())["loads"]
    assert [load["batch_size"] for load in loads] == [2]
