"""`specbench run` from a configuration to records, on a tiny model folder."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench.run import INTERRUPTED, run_benchmark
from specbench.config_build import build_config
from specbench.engine import acceptance, reference_compute
from specbench.errors import OutOfMemoryError, UsageError
from tests.support.folder import write_model, write_prompts

QUICK = {
    "max_new_tokens": 12,
    "batch_size": 2,
    "num_prompts": 4,
    "min_tokens": 4,
    "gamma": 3,
    "repeats": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", seed=3)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl", [40, 7, 120, 60])


def run(output: Path, model: Path, prompts: Path, **options: Any) -> tuple[int, str]:
    """Exit status and what was printed."""
    text = io.StringIO()
    values = {"model": str(model), "dataset": f"file:{prompts}", "output": output, **QUICK}
    config = build_config(values | options)
    argv = ["specbench", "run", "--model", str(model)]
    status = run_benchmark(config, console=Console(file=text, width=160), argv=argv)
    return status, text.getvalue()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_leaves_everything_that_a_reader_needs(
    tmp_path: Path, model: Path, prompts: Path
) -> None:
    status, printed = run(tmp_path / "out", model, prompts)
    assert status == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names >= {
        "run.json",
        "requests.jsonl",
        "arms.jsonl",
        "lossless.jsonl",
        "throughput.csv",
        "acceptance.csv",
        "overhead.csv",
        "lossless.csv",
        "throughput.png",
        "acceptance.png",
    }
    requests = lines(tmp_path / "out" / "requests.jsonl")
    assert len(requests) == 2 * 2 * 4
    outputs = {
        arm: {r["index"]: r["output_ids"] for r in requests if r["arm"] == arm}
        for arm in ("autoregressive", "vegas")
    }
    assert outputs["autoregressive"] == outputs["vegas"]
    order = [(r["repeat"], r["arm"]) for r in lines(tmp_path / "out" / "arms.jsonl")]
    assert order == [(0, "autoregressive"), (0, "vegas"), (1, "autoregressive"), (1, "vegas")]
    run_json = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run_json["config"]["model"] == "model"
    assert str(tmp_path) not in json.dumps(run_json)
    assert run_json["arms"][1]["parameters"]["gamma"] == 3
    table = pd.read_csv(tmp_path / "out" / "throughput.csv").set_index("arm")
    assert (table["status"] == "PASSED").all()
    assert (table["output_throughput"] > 0).all()
    table = pd.read_csv(tmp_path / "out" / "acceptance.csv").set_index("arm")
    assert pd.isna(table.loc["autoregressive", "spec_decode_acceptance_length"])
    assert 1 <= table.loc["vegas", "spec_decode_acceptance_length"] <= 4
    assert "exact 8/8" in printed


def test_one_new_token_and_a_first_token_that_is_eos(
    tmp_path: Path, model: Path, prompts: Path
) -> None:
    status, printed = run(tmp_path / "one", model, prompts, max_new_tokens=1, repeats=1)
    assert status == 0
    assert all(r["committed"] == [] for r in lines(tmp_path / "one" / "requests.jsonl"))
    assert "–" in printed
    folder = write_model(tmp_path / "ends", seed=3)
    first = lines(tmp_path / "one" / "requests.jsonl")[0]["output_ids"][0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [1, first]}))
    status, _ = run(tmp_path / "eos", folder, prompts, repeats=1)
    assert status == 0
    ended = [r for r in lines(tmp_path / "eos" / "requests.jsonl") if r["index"] == 0]
    assert [(r["output_ids"], r["finish_reason"]) for r in ended] == [([first], "eos")] * 2


def test_a_lossy_method_ends_in_status_1(
    tmp_path: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading = acceptance._leading

    def accept_the_first(stands: Any, allowed: Any) -> Any:
        stands[:, 0] = True
        return leading(stands, allowed)

    monkeypatch.setattr(acceptance, "_leading", accept_the_first)
    status, printed = run(tmp_path / "out", model, prompts, repeats=1)
    assert status == 1
    assert "LOSSY" in printed
    verdicts = lines(tmp_path / "out" / "lossless.jsonl")
    wrong = [v for v in verdicts if not v["lossless"]]
    assert wrong
    assert all(v["first_divergence"] >= 1 and v["top2_margin"] >= 0 for v in wrong)


def test_half_precision_is_judged_by_teacher_forcing(
    tmp_path: Path, model: Path, prompts: Path
) -> None:
    status, printed = run(tmp_path / "out", model, prompts, dtype="bfloat16", repeats=1)
    verdicts = lines(tmp_path / "out" / "lossless.jsonl")
    assert {v["tier"] for v in verdicts} == {"teacher-forced"}
    assert all(v["worst_margin"] is not None for v in verdicts)
    assert status == (0 if all(v["lossless"] for v in verdicts) else 1), printed


def test_sampled_runs_say_that_they_are_unchecked(
    tmp_path: Path, model: Path, prompts: Path
) -> None:
    status, printed = run(tmp_path / "out", model, prompts, temperature=0.8, top_p=0.9)
    assert status == 0
    assert "unchecked" in printed
    requests = lines(tmp_path / "out" / "requests.jsonl")
    by_repeat = [
        [r["output_ids"] for r in requests if r["arm"] == "vegas" and r["repeat"] == repeat]
        for repeat in (0, 1)
    ]
    assert by_repeat[0] != by_repeat[1]


def test_a_nan_is_an_error_that_names_request_and_step(
    tmp_path: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reference_compute.ReferenceCompute.logits
    calls = []

    def poisoned(self: Any, hidden: Any) -> Any:
        logits = real(self, hidden)
        if hidden.dim() == 3 and hidden.shape[1] > 1:  # a verification of drafts
            calls.append(1)
            if len(calls) > 6:
                logits[0, 0, 0] = float("nan")
        return logits

    monkeypatch.setattr(reference_compute.ReferenceCompute, "logits", poisoned)
    status, printed = run(tmp_path / "out", model, prompts, repeats=1)
    assert status == 3
    records = {r["arm"]: r for r in lines(tmp_path / "out" / "arms.jsonl")}
    assert records["autoregressive"]["status"] == "PASSED"
    assert records["vegas"]["status"] == "RUNTIME_ERROR"
    assert "request 'p" in records["vegas"]["message"]
    assert ", step " in records["vegas"]["message"]
    assert "RUNTIME_ERROR" in printed


def test_an_arm_out_of_memory_does_not_end_the_others(
    tmp_path: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.methods.vegas import Vegas

    def full(self: Any, engine: Any) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")

    monkeypatch.setattr(Vegas, "bind", full)
    status, printed = run(tmp_path / "out", model, prompts, repeats=1)
    records = {r["arm"]: r["status"] for r in lines(tmp_path / "out" / "arms.jsonl")}
    assert records == {"autoregressive": "PASSED", "vegas": "OOM"}
    assert status == 3
    assert "OOM" in printed


def test_a_plan_beyond_the_memory_is_refused_with_its_bytes(
    tmp_path: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.bench.fit.available_bytes", lambda device: 100_000)
    with pytest.raises(OutOfMemoryError, match=r"needs .* MiB .*KV cache .* are free"):
        run(tmp_path / "out", model, prompts)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_reports_what_is_there(
    tmp_path: Path, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.results.store import RunStore

    append = RunStore.append_request

    def stop(self: Any, record: Any) -> None:
        append(self, record)
        if record.arm == "vegas":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "append_request", stop)
        status, printed = run(tmp_path / "out", model, prompts)
    assert status == INTERRUPTED
    assert "autoregressive" in printed
    with pytest.raises(UsageError, match="--resume"):
        run(tmp_path / "out", model, prompts)
    status, _ = run(tmp_path / "out", model, prompts, resume=True)
    assert status == 0
    assert len(lines(tmp_path / "out" / "requests.jsonl")) == 16


def test_random_weights_run_on_random_tokens(tmp_path: Path) -> None:
    text = io.StringIO()
    values = {"model": "dummy:tiny", "context_len": 50, "output": tmp_path / "out", **QUICK}
    status = run_benchmark(
        build_config(values), console=Console(file=text, width=160), argv=["specbench"]
    )
    assert status == 0
    run_json = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run_json["model"]["dummy"] is True
    assert run_json["datasets"][0]["source"] == "random token ids"
    assert [p["tokens"] for p in run_json["datasets"][0]["prompts"]] == [50] * 4
    assert "dummy weights" in text.getvalue()
