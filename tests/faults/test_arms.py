"""An arm that fails in the middle: its status and message, the others go on, resume tries again."""

import gc
import json
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.bench.status import classify
from specbench.engine.reference_compute import ReferenceCompute
from specbench.methods.lookup import Lookup
from specbench.methods.vegas import Vegas
from specbench.results.records import Status
from tests.support.passes import Attempt
from tests.support.prepared import Fault, Interpreter
from tests.support.torture import Torture, content, read
from tests.support.vllm import fake_python

OPTIONS: dict[str, Any] = {
    **{"max_new_tokens": 12, "min_tokens": 4, "gamma": 3, "batch_size": 2, "num_prompts": 4},
    **{"repeats": 2, "method": ("vegas", "lookup")},
}


@pytest.fixture
def options(inputs: Path) -> dict[str, Any]:
    paths = {"model": str(inputs / "model"), "dataset": f"file:{inputs / 'prompts.jsonl'}"}
    return {**OPTIONS, **paths}


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    paths = {"model": str(inputs / "model"), "dataset": f"file:{inputs / 'prompts.jsonl'}"}
    Attempt(folder, **OPTIONS, **paths)
    return folder


def fail_in(
    monkeypatch: pytest.MonkeyPatch, method: type, call: int, do: Callable[[Any], None]
) -> None:
    """Have forward number `call` of the arm of `method` do something else."""
    hidden, calls = ReferenceCompute.hidden, 0
    use = "specbench.engine.engine.Engine.use"
    current: Any = None

    def note(self: Any, chosen: Any, sampling: Any) -> None:
        nonlocal current
        current = chosen
        original(self, chosen, sampling)

    def counted(self: ReferenceCompute, *arguments: Any) -> Tensor:
        nonlocal calls
        if isinstance(current, method):
            calls += 1
            if calls == call:
                do(current)
        return hidden(self, *arguments)

    from specbench.engine.engine import Engine

    original = Engine.use
    monkeypatch.setattr(use, note)
    monkeypatch.setattr(ReferenceCompute, "hidden", counted)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_out_of_memory_in_the_middle(
    options: dict[str, Any],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    held: list[weakref.ref[Any]] = []

    def exhaust(method: Any) -> None:
        held.extend(weakref.ref(v) for v in vars(method).values() if isinstance(v, Tensor))
        held.append(weakref.ref(method.engine.phases))  # it lives on
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.\nGPU 0 has")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_in(patch, Vegas, random.Random(seed).randint(1, 60), exhaust)
        attempt = Attempt(out, **options)
    gc.collect()
    *buffers, alive = (reference() for reference in held)
    assert alive is not None
    assert not any(buffer is not None for buffer in buffers), "what the arm had is given back"
    attempt.host.engine.check_integrity()
    assert attempt.host.engine.cache.free_pages == attempt.host.engine.cache.num_pages
    assert attempt.statuses == {"autoregressive": "PASSED", "vegas": "OOM", "lookup": "PASSED"}
    assert attempt.messages["vegas"] == (
        "CUDA out of memory. Tried to allocate 9.00 GiB.; use a smaller --batch-size or "
        "--context-len"
    )
    assert "vegas on file:prompts.jsonl: OOM: CUDA out of memory" in attempt.printed
    assert set(Attempt(out, **options).statuses.values()) == {"PASSED"}
    assert content(out) == content(whole)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: "
        ),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_is_short_by_any_name(error: Exception) -> None:
    status, message = classify(error)
    assert status is Status.OOM
    assert message.endswith("; use a smaller --batch-size or --context-len")


def test_a_baseline_that_failed_leaves_no_verdict_for_good(
    options: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.methods.autoregressive import Autoregressive

    def fail(method: Any) -> None:
        raise RuntimeError("a kernel that is not there")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_in(patch, Autoregressive, 30, fail)
        attempt = Attempt(out, **options)
    assert attempt.statuses["autoregressive"] == "RUNTIME_ERROR"
    assert "a kernel that is not there (fail:" in str(attempt.messages["autoregressive"])
    assert attempt.statuses["vegas"] == "PASSED"
    verdicts = [json.loads(line) for line in read(out / "lossless.jsonl").splitlines()]
    assert {verdict["tier"] for verdict in verdicts} <= {"exact"}
    Attempt(out, **options)
    assert content(out) == content(whole)


def test_a_silent_arm_times_out(
    options: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_in(patch, Lookup, 9, lambda method: time.sleep(60))
        began = time.monotonic()
        attempt = Attempt(out, **options, timeout=1)
    assert time.monotonic() - began < 30
    assert attempt.statuses == {"autoregressive": "PASSED", "vegas": "PASSED", "lookup": "TIMEOUT"}
    assert attempt.messages["lookup"] == "nothing was decoded for 1 s; --timeout allows more"
    attempt.host.engine.check_integrity()
    assert set(Attempt(out, **options, timeout=60).statuses.values()) == {"PASSED"}
    assert content(out) == content(whole)


def test_an_arm_beyond_reach_ends_the_run_with_its_report(torture: Torture) -> None:
    out = torture.folder / "stuck"
    hooks = ("tests.support.hangs:hang_beyond_reach",)
    ended = torture.disturb(out, "--timeout", 1, fault=Fault(hooks=hooks))
    assert ended.status == 3
    said = "vegas on file:prompts.jsonl: TIMEOUT: nothing was decoded for 1 s; --timeout allows"
    assert said in ended.printed
    assert "and the pass could not be interrupted" in ended.printed.replace("\n", "")
    assert (out / "report.html").is_file()
    last = json.loads(read(out / "arms.jsonl").splitlines()[-1])
    assert (last["arm"], last["status"]) == ("vegas", "TIMEOUT")
    torture.finish(out)


def test_a_worker_of_vllm_that_is_killed(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_python(tmp_path)
    served = {**options, "method": ("vllm", "lookup"), "vllm_python": python}
    del served["min_tokens"]
    out = tmp_path / "out"
    monkeypatch.setenv("FAKE_VLLM_BEHAVES", "killed")
    attempt = Attempt(out, **served)
    assert attempt.statuses == {
        "autoregressive": "PASSED",
        "vllm": "RUNTIME_ERROR",
        "lookup": "PASSED",
    }
    assert "vLLM's process ended (signal SIGKILL" in str(attempt.messages["vllm"])
    monkeypatch.delenv("FAKE_VLLM_BEHAVES")
    again = Attempt(out, **served)
    assert set(again.statuses.values()) == {"PASSED"}
    assert read(out / "requests.jsonl").count(b"\n") == 3 * 2 * 4


def test_a_pass_of_vllm_that_was_killed_at_its_very_end(
    interpreter: Interpreter, inputs: Path, tmp_path: Path
) -> None:
    """All requests are on record, so that the resumed pass has none and vLLM nothing to count."""
    out = tmp_path / "out"
    options = (
        *("run", "--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 4),
        *("--method", "vllm", "--vllm-python", fake_python(tmp_path), "--no-baseline"),
        *("--max-new-tokens", 8, "--batch-size", 2, "--repeats", 1, "--output", out),
    )
    record_of_the_pass = 2 + 4  # run.json is written and renamed, then come the requests
    fault = Fault(event=record_of_the_pass, torn=0.0)
    assert interpreter.run(*options, cwd=inputs, fault=fault).status == -9
    assert read(out / "requests.jsonl").count(b"\n") == 4
    assert read(out / "arms.jsonl") == b""
    ended = interpreter.run(*options, "--resume", cwd=inputs)
    assert ended.status == 0, ended.printed
    (record,) = map(json.loads, read(out / "arms.jsonl").splitlines())
    assert (record["status"], record["served"]) == ("PASSED", None)
