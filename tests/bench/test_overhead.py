"""A probe's times reach the overhead table; one that fails ends nothing."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench.backends import EngineBackend
from specbench.bench.run import run_benchmark
from specbench.config_build import build_config
from specbench.engine.probe import Probe
from specbench.engine.trace import Split
from specbench.errors import UsageError
from tests.support.folder import write_model, write_prompts

PARTS = {"draft": 4.1e-3, "verify": 2.1e-3, "selection": 0.3e-3, "sampling": 0.1e-3}
FROZEN = {"draft": 4e-3, "verify": 2e-3, "selection": 0.0, "sampling": 0.1e-3}
PROBE = Probe(
    iterations=40,
    iteration=7.12e-3,
    frozen=6.6e-3,
    split=Split(phases=PARTS, other=0.2e-3, gaps=0.32e-3),  # type: ignore[arg-type]
    frozen_split=Split(phases=FROZEN, other=0.2e-3, gaps=0.3e-3),  # type: ignore[arg-type]
)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, overhead: Any) -> tuple[int, str, Any]:
    monkeypatch.setattr(EngineBackend, "overhead", overhead)
    text = io.StringIO()
    config = build_config(
        {
            "model": str(write_model(folder / "model", seed=3)),
            "dataset": f"file:{write_prompts(folder / 'p.jsonl', [40, 7, 60])}",
            "output": folder / "out",
            "max_new_tokens": 12,
            "batch_size": 2,
            "min_tokens": 4,
            "gamma": 3,
            "repeats": 2,
        }
    )
    status = run_benchmark(config, console=Console(file=text, width=160), argv=["specbench"])
    table = pd.read_csv(folder / "out" / "overhead.csv").set_index("arm")
    return status, text.getvalue(), table.loc["vegas"]


def test_a_probe_is_split_so_that_selection_has_its_share_of_the_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def overhead(self: EngineBackend, requests: Sequence[Any], sampling: Any) -> Probe:
        asked.append(len(requests))
        return PROBE

    status, _, row = run(tmp_path, monkeypatch, overhead)
    assert status == 0
    # once an arm, of a full batch
    assert asked == [2, 2]
    assert row["overhead_source"] == "profiler trace"
    found = {name: row[f"{name}_ms"] for name in (*PARTS, "other", "iteration")}
    assert found == pytest.approx(
        {
            **{"draft": 4, "verify": 2, "selection": 0.52, "sampling": 0.1},
            **{"other": 0.5, "iteration": 7.12},
        }
    )
    assert row["selection_percent"] == pytest.approx(100 * 0.52 / 7.12)
    # 0.3 of kernels, 0.1 that collecting adds to drafts and verification each, and 0.02 of gaps
    assert row["selection_trace_ms"] == pytest.approx(0.52)
    assert row["selection_agreement"] == pytest.approx(0, abs=1e-9)
    assert row["split_sum_error"] == pytest.approx(0, abs=1e-9)


def test_what_cannot_be_probed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overhead(self: EngineBackend, requests: Sequence[Any], sampling: Any) -> Probe:
        raise UsageError("too few tokens")

    status, printed, row = run(tmp_path, monkeypatch, overhead)
    assert status == 0
    assert printed.count("no time split: too few tokens") == 2
    assert row["overhead_source"] == "timers (CPU)"
