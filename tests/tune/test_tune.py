"""`specbench tune` on a tiny model: the files it leaves, kill and resume, what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from specbench.cli import main
from tests.support.folder import command, environment, specbench, write_model, write_prompts

ROOT = Path(__file__).parents[2]
OPTIONS: tuple[object, ...] = (
    *("--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 3),
    *("--max-new-tokens", 12, "--min-tokens", 4, "--batch-size", 2),
    *("--ratios", "0.05,0.3", "--gammas", "1,3", "--repeats", 3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and prompts."""
    root = tmp_path_factory.mktemp("tuning")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [40 + 9 * i for i in range(8)])
    return root


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    """A finished tuning."""
    done = specbench("tune", *OPTIONS, "--output", "tuned", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder / "tuned"


def test_it_leaves_what_a_reader_needs(tuned: Path) -> None:
    names = {path.name for path in tuned.iterdir()}
    assert names >= {
        *("study.journal", "trials.csv", "tuned.yaml", "comparison.csv"),
        *("step1.png", "step2.png", "step3.png", "contour.png", "final"),
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
    printed = (tuned.parent / "printed.txt").read_text()
    assert "step 2  gamma 3" in printed
    assert "best gamma" in printed
    assert "held-out decode throughput of vegas-tuned over" in printed


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


def test_tuned_yaml_runs(tuned: Path, folder: Path) -> None:
    chosen = yaml.safe_load((tuned / "tuned.yaml").read_text())
    assert {"gamma", "kept_ratio", "min_tokens", "dataset"} <= set(chosen)
    ran = specbench(
        *("run", "--config", tuned / "tuned.yaml", "--repeats", 1, "--output", "again"), cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    run = json.loads((folder / "again" / "run.json").read_text())
    parameters = run["arms"][1]["parameters"]
    assert (parameters["gamma"], parameters["min_tokens"]) == (chosen["gamma"], 4)
    assert parameters["kept_ratio"] == chosen["kept_ratio"]


def test_a_finished_tuning_resumes_without_measuring(tuned: Path, folder: Path) -> None:
    before = pd.read_csv(tuned / "trials.csv")
    requests = (tuned / "final" / "requests.jsonl").read_bytes()
    again = specbench("tune", *OPTIONS, "--output", "tuned", "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    pd.testing.assert_frame_equal(pd.read_csv(tuned / "trials.csv"), before)
    assert (tuned / "final" / "requests.jsonl").read_bytes() == requests


def test_another_machine_may_take_the_study_from_a_database(folder: Path) -> None:
    shared = (*OPTIONS, "--repeats", 1, "--storage", "sqlite:///study.db")
    first = specbench("tune", *shared, "--output", "here", cwd=folder)
    assert first.returncode == 0, first.stderr
    refused = specbench("tune", *shared, "--output", "there", cwd=folder)
    assert refused.returncode == 2
    assert "--resume continues it, --study names another one" in refused.stderr
    joined = specbench("tune", *shared, "--output", "there", "--resume", cwd=folder)
    assert joined.returncode == 0, joined.stderr
    trials = [(folder / name / "trials.csv").read_text() for name in ("here", "there")]
    assert trials[0] == trials[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--ratios", "0.05,0.2"), "space.ratios: [0.05, 0.3] there, [0.05, 0.2] now"),
        (("--batch-size", "1"), "config.batch_size: 2 there, 1 now"),
        (("--objective", "tpot"), 'objective: "throughput" there, "tpot" now'),
        (("--num-prompts", "4"), "prompts: "),
    ],
)
def test_another_tuning_in_the_same_folder_is_refused(
    tuned: Path,
    folder: Path,
    changed: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = (tuned / "study.journal").read_bytes()
    arguments = [*map(str, OPTIONS), *changed, "--output", "tuned", "--resume"]
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert (tuned / "study.journal").read_bytes() == before


def journal(folder: Path) -> list[dict[str, Any]]:
    """The entries of a journal, whole lines only."""
    lines = (folder / "study.journal").read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def test_a_killed_tuning_continues_where_it_was(folder: Path) -> None:
    process = subprocess.Popen(
        command("tune", *OPTIONS, "--output", "killed"),
        cwd=folder,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = folder / "killed" / "study.journal"
    deadline = time.monotonic() + 120
    # optuna's code for the end of a trial is 6; the fourth is in step 2
    while not file.is_file() or sum(e["op_code"] == 6 for e in journal(file.parent)) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = file.read_bytes()
    refused = specbench("tune", *OPTIONS, "--output", "killed", cwd=folder)
    assert refused.returncode == 2
    assert "--resume continues it" in refused.stderr
    resumed = specbench("tune", *OPTIONS, "--output", "killed", "--resume", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert file.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    trials = pd.read_csv(folder / "killed" / "trials.csv")
    passed = trials[trials["status"] == "PASSED"]
    assert not passed.duplicated(["step", "kept_ratio", "gamma"]).any()
    ended = trials[trials["status"] == "WORKER_ENDED"]
    assert len(ended) <= 1
    assert not (trials["status"] == "RUNNING").any()


def test_workers_share_the_trials(folder: Path) -> None:
    done = specbench(
        *("tune", *OPTIONS[:4], "--ratios", "0.05,0.1,0.2,0.3", "--gammas", "1,2,3,4"),
        *("--num-prompts", 1, "--max-new-tokens", 4, "--repeats", 1, "--min-tokens", 4),
        *("--workers", 2, "--threads", 2, "--output", "shared"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "[2] step" in done.stdout
    trials = pd.read_csv(folder / "shared" / "trials.csv")
    passed = trials[trials["status"] == "PASSED"]
    assert not passed.duplicated(["step", "kept_ratio", "gamma"]).any()
    assert sorted(passed[passed["step"] == 1]["kept_ratio"]) == [0.05, 0.1, 0.2, 0.3]
    assert sorted(passed[passed["step"] == 2]["gamma"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "autoregressive"), "autoregressive has nothing to tune"),
        (("--method", "vllm"), "vllm has nothing to tune"),
        (("--method", "longspec"), "a gamma; longspec --drafts chain has"),
        (("--method", "vegas,autoregressive"), "one --method at a time"),
        (("--method", "magicdec", "--variant", "all"), "one arm at a time, not magicdec-stream"),
        (("--method", "magicdec", "--budget", "99"), "both say how much drafts read"),
        (("--method", "lookup", "--ratios", "0.1"), "lookup has no ratios to choose from"),
        (("--gamma", "4"), "--gammas limits the values"),
        (("--kept-ratio", "0.1"), "--ratios limits the values"),
        (("--ratios", ""), "--ratios ()"),
        (("--ratios", "0.1,2"), "--ratios '2'"),
        (("--gammas", "0"), "needs a value above 0"),
        (("--gammas", "two"), "--gammas 'two'"),
        (("--num-prompts", "6", "--held-out", "9"), "yields 8 different prompts"),
        (("--output", "new", "--resume"), "nothing to resume"),
        (("--resume",), "--resume needs --output"),
        (("--threads", "1", "--workers", "2"), "--workers 2 share 1 threads"),
        (("--storage", "nonsense://x"), "no URL of a database"),
        (("--storage", "prompts.jsonl"), "is no Optuna journal"),
    ],
)
def test_bad_input(
    folder: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit) as ended:
        main(["tune", *map(str, OPTIONS[:4]), "--max-new-tokens", "4", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    assert after == before


def test_a_lossy_method_fails_its_trials(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specbench.engine import acceptance

    leading = acceptance._leading

    def accept_the_first(stands: Any, allowed: Any) -> Any:
        stands[:, 0] = True
        return leading(stands, allowed)

    monkeypatch.setattr(acceptance, "_leading", accept_the_first)
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(["tune", *map(str, OPTIONS), "--output", "lossy"])
    assert ended.value.code == 3
    assert "every trial failed" in capsys.readouterr().err
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
