"""`specbench tune` on a tiny model: the files it leaves, kill and resume, what it refuses."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from specbench.engine.engine import Engine
from specbench.results.figures import summarise_figures
from specbench.results.page import render_template
from specbench.results.page.tables import page_table
from specbench.results.summary_table import Column
from tests.results.test_page import Tags
from tests.support.folder import specbench, write_model, write_prompts
from tests.support.tuning import Called, call, leave_out_plots

OPTIONS: tuple[object, ...] = (
    *("--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 3),
    *("--max-new-tokens", 8, "--min-tokens", 4, "--batch-size", 2),
    *("--ratios", "0.05,0.3", "--gammas", "1,3", "--repeats", 3),
)
# for what does not depend on how much is measured
QUICK: tuple[object, ...] = (
    *(*OPTIONS[:4], "--num-prompts", 1, "--max-new-tokens", 3, "--min-tokens", 4),
    *("--ratios", "0.3", "--gammas", "1", "--repeats", 1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and prompts."""
    root = tmp_path_factory.mktemp("tuning")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [40 + 9 * i for i in range(8)])
    return root


@pytest.fixture(scope="module")
def told(folder: Path) -> Called:
    """A tuning with its plots, called once."""
    told = call("tune", *OPTIONS, "--output", "tuned", cwd=folder)
    assert told.status == 0, told.err
    return told


@pytest.fixture
def tuned(told: Called, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished tuning; what a test calls after it draws nothing."""
    leave_out_plots(monkeypatch)
    return folder / "tuned"


def test_it_leaves_what_a_reader_needs(tuned: Path, told: Called) -> None:
    names = {path.name for path in tuned.iterdir()}
    assert names >= {
        *("study.journal", "trials.csv", "tuned.yaml", "comparison.csv", "environment.json"),
        *("step1.png", "step2.png", "step3.png", "contour.png", "final", "report.html"),
        *("step1.svg", "step2.svg", "step3.svg", "contour.svg"),
    }
    assert (tuned / "contour.png").read_bytes().startswith(b"\x89PNG")
    trials = pd.read_csv(tuned / "trials.csv")
    assert set(trials["step"]) <= {1, 2, 3}
    assert (trials["status"] == "PASSED").all()
    assert sorted(trials[trials.step == 1]["kept_ratio"]) == [0.05, 0.3]
    assert sorted(trials[trials.step == 2]["gamma"]) == [0, 1, 3]
    assert trials["chosen"].any()
    assert (trials["seconds"] > 0).all()
    assert "step 2  gamma 3" in told.out
    assert "best gamma" in told.out
    assert "held-out decode throughput of vegas-tuned over" in told.out


def test_the_final_figure_is_of_other_prompts_and_of_interleaved_arms(tuned: Path) -> None:
    final = tuned / "final"
    assert {"throughput.csv", "overhead.csv", "lossless.csv"} <= {p.name for p in final.iterdir()}
    run = json.loads((final / "run.json").read_text())
    prompts = [prompt["item_id"] for prompt in run["datasets"][0]["prompts"]]
    assert prompts == ["p3", "p4", "p5"]
    arms = [json.loads(line)["arm"] for line in (final / "arms.jsonl").read_text().splitlines()]
    assert arms == ["autoregressive", "vegas-default", "vegas-tuned"] * 3
    table = pd.read_csv(tuned / "comparison.csv")
    assert list(table["over"]) == ["vegas-default", "autoregressive", "autoregressive"]
    assert (table["low"] <= table["high"]).all()


def test_the_page_holds_choice_trials_plots_and_commands_and_needs_nothing_else(
    tuned: Path, told: Called
) -> None:
    text = (tuned / "report.html").read_text(encoding="utf-8")
    parsed = Tags(text)
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    places = [a[name] for _, a in parsed.tags for name in ("href", "src") if name in a]
    assert {p for p in places if p and not p.startswith(("#", "data:"))} == {"final/report.html"}
    for name in ("step1", "step2", "step3", "contour"):
        assert f'<figure id="plot-{name}">' in text
    for line in told.out.splitlines():
        if line.startswith("held-out decode throughput"):
            assert f"<li>{line}</li>" in text
    assert "Trials</caption>" in text
    assert text.count("<tr><td") >= len(pd.read_csv(tuned / "trials.csv"))
    assert "specbench run --config tuned.yaml" in text
    assert "prefers-color-scheme: dark" in text


def test_the_page_escapes_what_it_is_given() -> None:
    text = render_template(
        "tuning.html.j2",
        plots={},
        title="<tag>title",
        header=["<tag>header"],
        cpu_note=None,
        findings=["<tag>finding"],
        tables=[page_table("<tag>table", (Column("a", "<tag>a"),), [{"a": "<tag>cell"}])],
        links={"<tag>link": "'><tag>"},
        warnings=["<tag>warning"],
        runs=[],
        again=["<tag>again"],
    )
    assert "<tag>" not in text
    assert text.count("&lt;tag&gt;") >= 10


def test_tuned_yaml_runs(tuned: Path, folder: Path) -> None:
    chosen = yaml.safe_load((tuned / "tuned.yaml").read_text())
    assert {"gamma", "kept_ratio", "min_tokens", "dataset"} <= set(chosen)
    again = "run", "--config", tuned / "tuned.yaml", "--repeats", 1, "--output", "again"
    assert call(*again, cwd=folder).status == 0
    run = json.loads((folder / "again" / "run.json").read_text())
    parameters = run["arms"][1]["parameters"]
    assert (parameters["gamma"], parameters["min_tokens"]) == (chosen["gamma"], 4)
    assert parameters["kept_ratio"] == chosen["kept_ratio"]


def test_a_finished_tuning_resumes_without_measuring(tuned: Path, folder: Path) -> None:
    before = pd.read_csv(tuned / "trials.csv")
    requests = (tuned / "final" / "requests.jsonl").read_bytes()
    again = call("tune", *OPTIONS, "--output", "tuned", "--resume", cwd=folder)
    assert again.status == 0, again.err
    pd.testing.assert_frame_equal(pd.read_csv(tuned / "trials.csv"), before)
    assert (tuned / "final" / "requests.jsonl").read_bytes() == requests


def test_the_rest_of_the_grids_can_be_measured_as_a_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_plots(monkeypatch)
    options = (*QUICK, "--ratios", "0.05,0.3", "--gammas", "1,2", "--budget-minutes", 1e-6)
    first = call("tune", *options, "--output", "checked", cwd=folder)
    assert first.status == 0, first.err
    few = len(pd.read_csv(folder / "checked" / "trials.csv"))
    more = call(
        *("tune", *options[:-2], "--exhaustive", "--repeats", 3, "--output", "checked", "--resume"),
        cwd=folder,
    )
    assert more.status == 2, "the repeats are another tuning's"
    more = call(
        "tune", *options[:-2], "--exhaustive", "--output", "checked", "--resume", cwd=folder
    )
    assert more.status == 0, more.err
    trials = pd.read_csv(folder / "checked" / "trials.csv")
    timed = trials[trials.step > 1]
    assert len(trials) > few
    drafting = timed[timed.gamma > 0]
    assert sorted(zip(drafting.gamma, drafting.kept_ratio, strict=True)) == [
        *((1, 0.05), (1, 0.3), (2, 0.05), (2, 0.3))
    ]
    table = pd.read_csv(folder / "checked" / "comparison.csv")
    assert list(table["over"])[:2] == ["vegas-grid", "vegas-default"]
    assert (table["value"] > 0).all()
    assert "best of the grids" in more.out


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        (("longspec", "--draft-weights", "dummy", "--ratios", "2,4"), ["width", "depth"]),
        (("specextend", "--drafts", "tree", "--ratios", "0.3"), ["kept_ratio", "depth"]),
        (("magicdec", "--draft-model", "model", "--ratios", "0.3"), ["kept_ratio", "gamma"]),
        (("lookup",), ["gamma"]),
    ],
)
def test_every_method_with_something_to_tune(
    options: tuple[str, ...],
    columns: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out_plots(monkeypatch)
    drafters = []
    load = Engine.drafter

    def counted(engine: Engine, name: Any, make: Any) -> Any:
        def made() -> Any:
            drafters.append(name)
            return make()

        return load(engine, name, made)

    monkeypatch.setattr(Engine, "drafter", counted)
    output = f"of-{options[0]}"
    tiny = *OPTIONS[:4], "--num-prompts", 1, "--max-new-tokens", 3, "--repeats", 1
    told = call(
        *("tune", "--method", *options, "--gammas", "1,2", *tiny, "--output", output), cwd=folder
    )
    assert told.status == 0, told.err
    trials = pd.read_csv(folder / output / "trials.csv")
    assert (trials["status"] == "PASSED").all(), trials
    assert set(columns) <= set(trials.columns)
    assert len(drafters) == (options[0] == "magicdec"), "a draft's weights are loaded once"
    tuned = yaml.safe_load((folder / output / "tuned.yaml").read_text())
    if tuned["method"] == ["autoregressive"]:
        assert "draft_weights" not in tuned
        assert "drafts" not in tuned
    again = "run", "--config", f"{output}/tuned.yaml", "--repeats", 1, "--output", f"{output}-run"
    assert call(*again, cwd=folder).status == 0


def test_the_ratios_can_be_claimed_as_figures(tuned: Path) -> None:
    figure = {
        **{"id": "tune.vs_default", "record": "tuned", "table": "comparison.csv", "unit": "×"},
        **{"column": "value", "low": "low", "high": "high"},
        "where": {"arm": "vegas-tuned", "over": "vegas-default"},
    }
    (tuned.parent / "figures.yaml").write_text(json.dumps([figure]))
    claimed = pd.read_csv(summarise_figures(tuned.parent)).iloc[0]
    measured = pd.read_csv(tuned / "comparison.csv").iloc[0]
    for name in ("value", "low", "high"):
        assert claimed[name] == measured[name]
    assert claimed["command"].startswith("specbench tune --model model")


def test_another_machine_may_take_the_study_from_a_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_plots(monkeypatch)
    shared = ("tune", *QUICK, "--storage", "sqlite:///study.db")
    first = call(*shared, "--output", "here", cwd=folder)
    assert first.status == 0, first.err
    refused = call(*shared, "--output", "there", cwd=folder)
    assert refused.status == 2
    assert "--resume continues it, --study names another one" in refused.err
    joined = call(*shared, "--output", "there", "--resume", cwd=folder)
    assert joined.status == 0, joined.err
    trials = [(folder / name / "trials.csv").read_text() for name in ("here", "there")]
    assert trials[0] == trials[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--ratios", "0.05,0.2"), "space.ratios: [0.05, 0.3] there, [0.05, 0.2] now"),
        (("--batch-size", "1"), "config.batch_size: 2 there, 1 now"),
        (("--batch-size", "1,2"), "other --batch-size or --context-len"),
        (("--objective", "tpot"), 'objective: "throughput" there, "tpot" now'),
        (("--num-prompts", "4"), "prompts: "),
    ],
)
def test_another_tuning_in_the_same_folder_is_refused(
    tuned: Path, folder: Path, changed: tuple[str, ...], message: str
) -> None:
    before = (tuned / "study.journal").read_bytes()
    refused = call("tune", *OPTIONS, *changed, "--output", "tuned", "--resume", cwd=folder)
    assert refused.status == 2
    assert message in refused.err
    assert (tuned / "study.journal").read_bytes() == before


def journal(folder: Path) -> list[dict[str, Any]]:
    """The entries of a journal, whole lines only."""
    lines = (folder / "study.journal").read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def test_a_killed_tuning_continues_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_plots(monkeypatch)
    options = "tune", *OPTIONS, "--output", "killed"
    process = multiprocessing.get_context("fork").Process(
        target=call, args=options, kwargs={"cwd": folder}
    )
    process.start()
    file = folder / "killed" / "study.journal"
    deadline = time.monotonic() + 120
    # optuna's code for the end of a trial is 6; the fourth is in step 2
    while not file.is_file() or sum(e["op_code"] == 6 for e in journal(file.parent)) < 4:
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    kept = file.read_bytes()
    refused = call(*options, cwd=folder)
    assert refused.status == 2
    assert "--resume continues it" in refused.err
    resumed = call(*options, "--resume", cwd=folder)
    assert resumed.status == 0, resumed.err
    assert file.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    trials = pd.read_csv(folder / "killed" / "trials.csv")
    passed = trials[trials["status"] == "PASSED"]
    assert not passed.duplicated(["step", "kept_ratio", "gamma"]).any()
    ended = trials[trials["status"] == "WORKER_ENDED"]
    assert len(ended) <= 1
    assert not (trials["status"] == "RUNNING").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "autoregressive"), "autoregressive has nothing to tune"),
        (("--method", "vllm"), "vllm has nothing to tune"),
        (("--method", "longspec", "--tree-shape", "1,2"), "--gammas and --ratios limit the values"),
        (("--method", "longspec", "--ratios", "2.5"), "2.5 nodes: give a whole number"),
        (("--method", "specextend", "--drafts", "tree", "--depth", "3"), "--gammas limits"),
        (("--method", "vegas,autoregressive"), "one --method at a time"),
        (("--method", "magicdec", "--variant", "all"), "one arm at a time, not magicdec-stream"),
        (("--method", "magicdec", "--budget", "99"), "both say how much drafts read"),
        (("--method", "lookup", "--ratios", "0.1"), "lookup has no ratios to choose from"),
        (("--gamma", "4"), "--gammas limits the values"),
        (("--kept-ratio", "0.1"), "--ratios limits the values"),
        (("--schedule", "x.yaml"), "--schedule is an option of run"),
        (("--ratios", ""), "--ratios ()"),
        (("--ratios", "0.1,2"), "--ratios 2: vegas: kept_ratio"),
        (("--gammas", "0"), "needs a value above 0"),
        (("--gammas", "two"), "--gammas 'two'"),
        (("--batch-size", ""), "--batch-size ()"),
        (("--batch-size", "1,0"), "--batch-size 0: input"),
        (("--context-len", "long"), "--context-len 'long'"),
        (("--batch-size", "1,2,9"), "--batch-size 9 is not filled"),
        (("--context-len", "400,450", "--batch-size", "1,2"), "their prompts are the same"),
        (("--num-prompts", "6", "--held-out", "9"), "yields 8 different prompts"),
        (("--output", "new", "--resume"), "nothing to resume"),
        (("--resume",), "--resume needs --output"),
        (("--threads", "1", "--workers", "2"), "--workers 2 share 1 threads"),
        (("--storage", "nonsense://x"), "no URL of a database"),
        (("--storage", "prompts.jsonl"), "is no Optuna journal"),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    refused = call("tune", *OPTIONS[:4], "--max-new-tokens", 4, *arguments, cwd=folder)
    assert refused.status == 2
    assert message in refused.err
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    assert after == before


def test_a_lossy_method_fails_its_trials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.engine import acceptance

    leading = acceptance._leading

    def accept_the_first(stands: Any, allowed: Any) -> Any:
        stands[:, 0] = True
        return leading(stands, allowed)

    monkeypatch.setattr(acceptance, "_leading", accept_the_first)
    told = call("tune", *OPTIONS, "--output", "lossy", cwd=folder)
    assert told.status == 3
    assert "every trial failed" in told.err
    trials = pd.read_csv(folder / "lossy" / "trials.csv")
    assert set(trials["status"]) == {"LOSSY"}
    assert trials["reason"].str.contains("differs from the target's at token").all()


def test_the_dashboard_opens_the_study(tuned: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("optuna-dashboard")
    process = subprocess.Popen(
        [program, tuned / "study.journal", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"NO_PROXY": "127.0.0.1"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for _ in range(200):
            try:
                with opener.open(f"http://127.0.0.1:{port}/api/studies", timeout=5) as answer:
                    found = json.load(answer)["study_summaries"]
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
    finally:
        process.terminate()
        process.wait()
    names = {study["study_name"].partition("/")[2] for study in found}
    assert names == {"1-ratio-acceptance", "2-gamma", "3-ratio"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_tuning_ends_within_six_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    done = specbench("tune", "--threads", 2, "--output", "tuned", cwd=tmp_path, timeout=800)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 360
    # a draft costs as much as a token there
    assert yaml.safe_load((tmp_path / "tuned" / "tuned.yaml").read_text())["gamma"] == 0
