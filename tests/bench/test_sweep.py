"""`specbench run` at several loads: a folder each, one vLLM, and one report."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench import sweep
from specbench.bench.run import INTERRUPTED, run_plan
from specbench.bench.sweep import run_sweep
from specbench.cli import app, main
from specbench.config import SweepConfig
from specbench.config_build import build
from specbench.errors import UsageError
from specbench.methods.vllm import process
from specbench.methods.vllm.session import session_processes
from tests.support.folder import write_model, write_prompts
from tests.support.vllm import fake_python

LOADS = ["b1-c40", "b2-c40", "b1-c80", "b2-c80"]
QUICK = {
    "method": ("lookup", "vllm"),
    "max_new_tokens": 6,
    "num_prompts": 1,
    "repeats": 1,
    "batch_size": "2,1",
    "context_len": "40,80",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options: a model, prompts longer than any load's context, and a stand-in for vLLM."""
    folder = tmp_path_factory.mktemp("files")
    return {
        "model": str(write_model(folder / "model", seed=3)),
        "dataset": f"file:{write_prompts(folder / 'prompts.jsonl', [90, 100, 120])}",
        "vllm_python": fake_python(folder),
    }


def run(output: Path, **options: Any) -> tuple[int, str]:
    """Exit status and what was printed."""
    text = io.StringIO()
    dry = options.pop("dry_run", False)
    config = build(SweepConfig, QUICK | {"output": output} | options)
    status = run_sweep(config, console=Console(file=text, width=160), argv=["s"], dry_run=dry)
    return status, text.getvalue()


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_load_has_a_folder_and_all_have_one_report_and_one_vllm(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = process.VllmProcess.__init__

    def count(self: process.VllmProcess, *arguments: Any) -> None:
        real(self, *arguments)
        started.append(self.pid)

    monkeypatch.setattr(process.VllmProcess, "__init__", count)
    out = tmp_path / "out"
    status, printed = run(out, **files)
    assert status == 0, printed
    assert f"4 loads in {out}" in printed
    assert len(started) == 1
    assert session_processes(started[0]) == []
    table = pd.read_csv(out / "throughput.csv")
    assert (table["status"] == "PASSED").all()
    loads = table[["batch_size", "max_prompt_tokens"]].drop_duplicates()
    assert sorted(loads.values.tolist()) == [[1, 40], [1, 80], [2, 40], [2, 80]]
    assert (out / "heatmap.svg").is_file()
    for name in LOADS:
        config = json.loads((out / name / "run.json").read_text())["config"]
        assert f"b{config['batch_size']}-c{config['context_len']}" == name
        arms = records(out / name / "arms.jsonl")
        assert [arm["arm"] for arm in arms] == ["autoregressive", "lookup", "vllm"]
        # every load fills the cache itself
        assert arms[2]["served"]["fill_cache_hits"] == 0


def test_what_is_complete_is_kept_and_the_rest_is_measured(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    options = files | {"method": ("lookup",), "vllm_python": None}
    options |= {"batch_size": "3,2,1", "context_len": "40"}
    loads = ["b1", "b2", "b3"]
    seen: list[str] = []

    def interrupted_in_the_second(*arguments: Any, **keywords: Any) -> int:
        seen.append(arguments[2].name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return run_plan(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "run_plan", interrupted_in_the_second)
        with pytest.raises(KeyboardInterrupt):
            run(out, **options)
    assert seen == loads[:2]
    before = (out / "b1" / "requests.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds"):
        run(out, **options)
    status, _ = run(out, **options, resume=True)
    assert status == 0
    assert (out / "b1" / "requests.jsonl").read_bytes() == before
    for name in loads:
        # an arm's prompts fill the batch at least
        assert len(records(out / name / "requests.jsonl")) == 2 * int(name[1])


def test_an_interrupt_within_a_load_ends_the_sweep(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run_plan", lambda *_, **__: INTERRUPTED)
    assert run(tmp_path / "out", **files)[0] == INTERRUPTED


def test_a_dry_run_shows_every_load_and_writes_nothing(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    status, printed = run(tmp_path / "out", dry_run=True, **files)
    assert status == 0
    assert [line.split()[1] for line in printed.splitlines() if line[:5] == "load "] == LOADS
    assert not (tmp_path / "out").exists()


def test_wrong_loads_are_named(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the loads b7 and b3 are one"):
        run(tmp_path / "out", **files, batch_size="3,7,2", context_len="40", num_prompts=3)
    with pytest.raises(UsageError, match="the loads c300 and c200 are one"):
        run(tmp_path / "out", **files, batch_size="2", context_len="200,300")
    with pytest.raises(UsageError, match="load c9000: model holds 512 tokens, but 9,100"):
        run(tmp_path / "out", **files, batch_size="2", context_len="9000,40", max_new_tokens=100)
    assert not (tmp_path / "out").exists()


def test_the_command_line_knows_loads(tmp_path: Path, files: dict[str, Any]) -> None:
    options = ["--model", files["model"], "--dataset", files["dataset"], "--method", "lookup"]
    options += ["--batch-size", "1,2", "--max-new-tokens", "4", "--output", str(tmp_path / "out")]
    with pytest.raises(UsageError, match="--shard divides a run at one load"):
        app(["run", *options, "--shard", "1/2"], standalone_mode=False, obj=[])
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, "--num-prompts", "1", "--repeats", "1"])
    assert ended.value.code == 0
    assert sorted(place.name for place in (tmp_path / "out").glob("b*")) == ["b1", "b2"]
