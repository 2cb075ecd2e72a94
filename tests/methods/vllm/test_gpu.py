"""Real vLLM on a CUDA device; SPECBENCH_GPU_MODEL names a model folder (the hub's default else)."""

import gc
import io
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench.run import run_benchmark
from specbench.config_build import build_config
from specbench.methods.vllm import process
from specbench.methods.vllm.session import session_processes

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.timeout(600)]
NGRAM = 'speculative_config={"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3}'


def test_vllm_beside_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    sessions: list[int] = []
    real = process.VllmProcess.__init__

    def remember(self: process.VllmProcess, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        sessions.append(self.pid)

    monkeypatch.setattr(process.VllmProcess, "__init__", remember)
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    values = {
        "model": os.environ.get("SPECBENCH_GPU_MODEL"),
        "method": "vllm",
        "dataset": "longbench-v2",
        "source": "sample",
        "num_prompts": 6,
        "batch_size": 4,
        "context_len": 700,
        "max_new_tokens": 48,
        "repeats": 1,
        "vllm_arg": NGRAM,
        "output": tmp_path / "out",
    }
    text = io.StringIO()
    console = Console(file=text, width=160)
    status = run_benchmark(build_config(values), console=console, argv=["specbench"])
    print(text.getvalue())  # noqa: T201 - shown with -s
    assert status == 0
    table = pd.read_csv(tmp_path / "out" / "throughput.csv").set_index("arm")
    assert list(table.index) == ["autoregressive", "vllm", "vllm-ngram"]
    assert set(table["status"]) == {"PASSED"}
    arms = [json.loads(x) for x in (tmp_path / "out" / "arms.jsonl").read_text().splitlines()]
    requests = [
        json.loads(x) for x in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
    ]
    for arm in arms[1:]:
        assert "FLASH" in arm["attention_backend"]
        assert "FULL" in arm["graph_mode"]
        assert arm["peak_memory_bytes"] > 2**28
        assert arm["served"]["preemptions"] == 0
        assert arm["served"]["fill_cache_hits"] == 0
        assert arm["served"]["decode_cache_hits"] > 0.9 * arm["served"]["prompt_tokens"]
    plain, ngram = arms[1]["served"], arms[2]["served"]
    assert plain["spec_decode"] is None
    mine = [r for r in requests if r["arm"] == "vllm-ngram"]
    accepted = sum(count - 1 for r in mine for count in r["committed"])
    counted = ngram["spec_decode"]
    assert accepted <= counted["accepted_tokens"] <= accepted + 4 * len(mine)
    assert counted["accepted_tokens"] == sum(counted["accepted_per_position"])
    assert counted["num_drafts"] <= sum(len(r["committed"]) for r in mine)
    gc.collect()
    assert [session_processes(session) for session in sessions] == [[], []]
    # what this process still caches is its own engine's
    mine_still = torch.cuda.memory_reserved()
    assert free - torch.cuda.mem_get_info()[0] - mine_still < 2**29
