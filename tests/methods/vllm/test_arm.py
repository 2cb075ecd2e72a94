"""The vLLM arm from the command line's side, with a stand-in that behaves as a test asks."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench import fit
from specbench.bench.memory import available_bytes
from specbench.bench.run import INTERRUPTED, run_benchmark
from specbench.config_build import build_config
from specbench.methods.vllm import process
from specbench.methods.vllm.session import session_processes
from tests.support.folder import command, environment, write_model, write_prompts
from tests.support.vllm import FAKE, ROOT, fake_python

NGRAM = 'speculative_config={"method": "ngram", "num_speculative_tokens": 2}'
QUICK = {"max_new_tokens": 12, "batch_size": 2, "num_prompts": 3, "repeats": 1, "method": "vllm"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", seed=3)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl", [40, 17, 60])


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_python(tmp_path_factory.mktemp("bin"))


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, model: Path, prompts: Path, python: Path) -> Run:
    """Exit status and what was printed; the run's folder is `tmp_path` / "out"."""

    def call(*arguments: str, **options: Any) -> tuple[int, str]:
        text = io.StringIO()
        values = {"model": str(model), "dataset": f"file:{prompts}", "vllm_python": python}
        values |= {"output": tmp_path / "out", "vllm_arg": arguments, **QUICK} | options
        console = Console(file=text, width=160)
        status = run_benchmark(build_config(values), console=console, argv=["specbench"])
        return status, text.getvalue()

    return call


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / name).read_text().splitlines()]


def row(folder: Path, table: str, arm: str) -> dict[str, Any]:
    frame = pd.read_csv(folder / "out" / f"{table}.csv")
    return frame[frame["arm"] == arm].iloc[0].to_dict()


def test_one_table_with_vllm_and_the_speedup_over_it(run: Run, tmp_path: Path) -> None:
    status, printed = run(method=("vllm", "vegas"), repeats=2, vllm_arg=None)
    assert status == 0
    assert [line.split()[0] for line in printed.splitlines() if "PASSED" in line] == [
        "autoregressive",
        "vllm",
        "vegas",
    ]
    assert row(tmp_path, "throughput", "vllm")["speedup_over_vllm"] == 1.0
    assert row(tmp_path, "throughput", "vegas")["speedup_over_vllm"] > 0
    order = [(r["repeat"], r["arm"]) for r in records(tmp_path, "arms.jsonl")]
    assert order == [(i, arm) for i in (0, 1) for arm in ("autoregressive", "vllm", "vegas")]


def test_plain_vllm_has_no_acceptance_and_its_cache_is_on_record(run: Run, tmp_path: Path) -> None:
    run()
    record = next(r for r in records(tmp_path, "arms.jsonl") if r["arm"] == "vllm")
    assert record["graph_mode"] == "FULL_AND_PIECEWISE"
    assert record["attention_backend"] == "vLLM FLASH_ATTN"
    served = record["served"]
    assert served["version"] == "vllm 0.25.1"
    assert served["spec_decode"] is None
    assert served["fill_cache_hits"] == 0
    assert 0 < served["decode_cache_hits"] <= served["prompt_tokens"]
    assert served["settings"]["block_size"] == 16
    acceptance = row(tmp_path, "acceptance", "vllm")
    figures = [name for name in acceptance if "acceptance" in name or name.startswith("spec_")]
    assert figures
    assert all(pd.isna(acceptance[name]) for name in figures)
    repeats = row(tmp_path, "repeats", "vllm")
    assert repeats["engine_version"] == "vllm 0.25.1"
    assert repeats["full_steps"] > 0
    assert repeats["step_ms"] == pytest.approx(1.2, abs=1.0)


def test_only_steps_of_the_full_batch_count_and_prefill_is_apart(run: Run, tmp_path: Path) -> None:
    run(num_prompts=3)
    mine = [r for r in records(tmp_path, "requests.jsonl") if r["arm"] == "vllm"]
    for record in mine:
        steps = record["times"]["steps"]
        assert len(steps["step_s"]) == len(record["output_ids"]) - 1
        assert record["times"]["queue_s"] is None
        assert record["times"]["prefill_s"] > 0
        assert record["drafted"] is None
    # two of three requests start together; the third takes a place when both are done
    assert [r["times"]["steps"]["running"][0] for r in sorted(mine, key=lambda r: r["index"])] == [
        2,
        2,
        1,
    ]
    assert pd.isna(row(tmp_path, "throughput", "vllm")["duration"])
    assert row(tmp_path, "throughput", "vllm")["median_ttft_ms"] > 0


def test_reused_prompts_are_prefilled_in_the_first_pass(run: Run, tmp_path: Path) -> None:
    status, _ = run(repeats=2, reuse_prompts=True)
    assert status == 0
    for record in records(tmp_path, "requests.jsonl"):
        reused = record["times"]["reused_tokens"]
        full = record["prompt_tokens"] // 16 * 16
        if record["arm"] != "vllm":
            full = (record["prompt_tokens"] - 1) // 16 * 16
        assert reused == (full if record["repeat"] else 0)
    repeats = pd.read_csv(tmp_path / "out" / "repeats.csv")
    assert (repeats["median_ttft_ms"].isna() == (repeats["repeat"] == 1)).all()
    assert repeats["step_ms"].notna().all()
    for arm in ("vllm", "autoregressive"):
        served = row(tmp_path, "throughput", arm)
        first = [
            1e3 * r["times"]["ttft_s"]
            for r in records(tmp_path, "requests.jsonl")
            if r["arm"] == arm and r["repeat"] == 0
        ]
        assert served["mean_ttft_ms"] == pytest.approx(sum(first) / len(first))
        assert served["completed"] == 2 * len(first)
    # of the pass that prefilled: from its start to its last token
    ours = row(tmp_path, "throughput", "autoregressive")
    passed = [r for r in records(tmp_path, "requests.jsonl") if r["arm"] == "autoregressive"]
    ends = [r["times"]["queue_s"] + r["times"]["e2e_s"] for r in passed if r["repeat"] == 0]
    assert ours["duration"] == pytest.approx(max(ends))


def test_vllms_own_speculation_is_an_arm_with_its_counters(run: Run, tmp_path: Path) -> None:
    status, _ = run(NGRAM, baseline=False, repeats=2)
    assert status == 0
    acceptance = row(tmp_path, "acceptance", "vllm-ngram")
    # 11 tokens after the first at 2 a step: 6 steps, the last one cut to one token
    assert acceptance["spec_decode_acceptance_length"] == pytest.approx(11 / 6)
    assert acceptance["drafted_acceptance_length"] == 2.0
    assert acceptance["spec_decode_num_drafts"] == 2 * 3 * 6
    assert json.loads(acceptance["acceptance_histogram"]) == [0, 36, 0]
    assert json.loads(acceptance["spec_decode_per_position_acceptance_rates"]) == [1.0, 0.0]
    assert json.loads(acceptance["conditional_per_position_acceptance_rates"]) == [1.0, 0.0]
    assert acceptance["spec_decode_acceptance_rate"] == 0.5
    record = next(r for r in records(tmp_path, "arms.jsonl") if r["arm"] == "vllm-ngram")
    assert "none beyond 3 tokens (a full step has 6)" in record["graph_mode"]
    assert row(tmp_path, "throughput", "vllm-ngram")["speedup_over_vllm"] > 1.2


def test_end_tokens_are_the_runs(run: Run, tmp_path: Path) -> None:
    """The stand-in counts upwards, so that every request meets the end token sooner or later."""
    run(max_new_tokens=70, baseline=False)
    for record in records(tmp_path, "requests.jsonl"):
        assert record["finish_reason"] == "eos"
        assert record["output_ids"][-1] == 1
        assert 1 not in record["output_ids"][:-1]
    shutil.rmtree(tmp_path / "out")
    run(max_new_tokens=70, baseline=False, ignore_eos=True)
    assert {len(r["output_ids"]) for r in records(tmp_path, "requests.jsonl")} == {70}


@pytest.mark.parametrize(
    ("argument", "status", "words"),
    [
        ("behave=refuse", "RUNTIME_ERROR", "Model architectures ['FooForCausalLM'] are not"),
        ("behave=out-of-memory", "OOM", "OutOfMemoryError: CUDA out of memory. Tried 9 GiB"),
        ("behave=die", "RUNTIME_ERROR", "status 1): RuntimeError: CUDA error: device lost"),
        ("behave=raise", "RUNTIME_ERROR", "NotImplementedError: no kernel for this"),
        ("no_such_thing=1", "RUNTIME_ERROR", "unrecognized arguments: --no-such-thing=1"),
        ("max_num_batched_tokens=x", "RUNTIME_ERROR", "invalid int value: 'x'"),
    ],
)
def test_the_arm_fails_with_vllms_last_words_and_the_others_go_on(
    run: Run, tmp_path: Path, argument: str, status: str, words: str
) -> None:
    exit_status, printed = run(argument, repeats=2)
    assert exit_status == 3
    ended = records(tmp_path, "arms.jsonl")
    assert [r["status"] for r in ended if r["arm"] == "autoregressive"] == ["PASSED"] * 2
    (failed,) = [r for r in ended if r["arm"] == "vllm"]
    assert failed["status"] == status
    assert words in failed["message"]
    assert words in printed.replace("\n", " ")


def test_a_hanging_vllm_times_out(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(process, "CLOSE_SECONDS", 0.5)
    status, _ = run("behave=hang", vllm_timeout=2)
    assert status == 3
    failed = records(tmp_path, "arms.jsonl")[-1]
    assert failed["status"] == "TIMEOUT"
    assert "no sign of life for 2 s" in failed["message"]


def test_a_missing_vllm_and_a_missing_interpreter(run: Run, tmp_path: Path) -> None:
    if shutil.which("vllm"):
        pytest.skip("this environment has vLLM")
    status, _ = run(vllm_arg=None, vllm_python=Path(sys.executable))
    assert status == 3
    assert (
        "vLLM is not installed for the interpreter"
        in records(tmp_path, "arms.jsonl")[-1]["message"]
    )
    shutil.rmtree(tmp_path / "out")
    status, _ = run(vllm_arg=None, vllm_python=tmp_path / "nowhere")
    assert status == 3
    assert "No such file or directory" in records(tmp_path, "arms.jsonl")[-1]["message"]


def test_a_version_outside_the_range(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(FAKE, site)
    (site / "vllm-0.25.1.dist-info").rename(site / "vllm-0.99.0.dist-info")
    metadata = site / "vllm-0.99.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.25.1", "0.99.0"))
    status, _ = run(vllm_arg=None, vllm_python=fake_python(tmp_path, site))
    assert status == 3
    message = records(tmp_path, "arms.jsonl")[-1]["message"]
    assert "vllm 0.99.0 is outside the supported versions 0.25 to 0.33" in message


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sessions of all vLLM processes that were started."""
    started: list[int] = []
    real = process.VllmProcess.__init__

    def remember(self: process.VllmProcess, *arguments: Any) -> None:
        real(self, *arguments)
        started.append(self.pid)

    monkeypatch.setattr(process.VllmProcess, "__init__", remember)
    return started


@pytest.mark.parametrize("behave", ["child", "die", "raise"])
def test_no_process_is_left(run: Run, sessions: list[int], behave: str) -> None:
    run(f"behave={behave}")
    assert sessions
    assert [session_processes(session) for session in sessions] == [[]] * len(sessions)


def test_an_interrupt_ends_vllm_too(run: Run, sessions: list[int], monkeypatch: Any) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.results.store.RunStore.append_request", interrupt)
    status, _ = run("behave=child", baseline=False)
    assert status == INTERRUPTED
    assert [session_processes(session) for session in sessions] == [[]]


def test_a_killed_run_takes_vllm_along(
    tmp_path: Path, model: Path, prompts: Path, python: Path
) -> None:
    arguments = ["run", "--model", model, "--dataset", f"file:{prompts}", "--output", "out"]
    arguments += ["--method", "vllm", "--no-baseline", "--vllm-python", python, "--ignore-eos"]
    arguments += ["--vllm-arg", "behave=child", "--max-new-tokens", 400, "--repeats", 9]
    started = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    log = tmp_path / "out" / "requests.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    (session,) = map(int, children)
    while session_processes(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_processes(session) == []


def test_a_failed_arm_is_tried_again_on_resume(run: Run, tmp_path: Path, python: Path) -> None:
    broken = tmp_path / "python"
    shutil.copy(shutil.which("false") or "/bin/false", broken)
    assert run(vllm_arg=None, vllm_python=broken)[0] == 3
    shutil.copy(python, broken)
    assert run(vllm_arg=None, vllm_python=broken, resume=True)[0] == 0
    arms = [(r["arm"], r["status"]) for r in records(tmp_path, "arms.jsonl")]
    assert arms == [
        ("autoregressive", "PASSED"),
        ("vllm", "RUNTIME_ERROR"),
        ("vllm", "PASSED"),
    ]


def test_engines_that_do_not_fit_together_take_turns(
    run: Run, tmp_path: Path, sessions: list[int], monkeypatch: Any
) -> None:
    together = run(NGRAM, method=("vllm", "vegas"), repeats=2)
    assert len(sessions) == 2
    outputs = records(tmp_path, "requests.jsonl")
    shutil.rmtree(tmp_path / "out")
    assert available_bytes("cpu") is not None
    monkeypatch.setattr(fit, "available_bytes", lambda device: int(1.8 * 2**30))
    status, printed = run(NGRAM, method=("vllm", "vegas"), repeats=2)
    assert "in turns with the other engines" in printed
    assert (status, together[0]) == (0, 0)
    assert len(sessions) == 2 + 4  # each vLLM anew in each repeat

    def tokens(found: list[dict[str, Any]]) -> dict[tuple[str, int, int], list[int]]:
        return {(r["arm"], r["repeat"], r["index"]): r["output_ids"] for r in found}

    assert tokens(records(tmp_path, "requests.jsonl")) == tokens(outputs)


def test_agreement_is_reported_without_a_verdict(run: Run, tmp_path: Path) -> None:
    status, printed = run()
    assert status == 0  # the stand-in's tokens are not the model's, which is no failure
    assert "agrees 0/3" in printed
    assert "3 of 3 outputs part from the autoregressive arm's" in printed
    verdicts = records(tmp_path, "lossless.jsonl")
    assert {v["tier"] for v in verdicts} == {"agreement"}
    assert {v["lossless"] for v in verdicts} == {None}
    assert all(v["top2_margin"] >= 0 for v in verdicts)
