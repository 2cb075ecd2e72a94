"""`specbench kernels`: its gate lets right kernels through and wrong ones not; what it refuses."""

import sys
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from specbench.bench.kernels import check as gate
from specbench.bench.kernels import run, workloads
from specbench.bench.kernels.cases import CASES, Case, find_cases
from specbench.bench.kernels.run import COLUMNS, FILE, run_kernels
from specbench.bench.kernels.workloads import build
from specbench.cli import main
from specbench.errors import NumericalError, UsageError
from tests.support.device import DEVICE

CHOSEN = (
    "verify.1x100000",
    "verify.64x24000",
    "tree.1x20074",
    "sparse.8x1638",
    "select.36x4x100000",
    "sample.16",
    "sample.16.all",
    "accept.16x9",
)
SMALL = [
    replace(case, context=200, batch=2, rows=min(case.rows, 3), layers=2, entries=60)
    for case in CASES
    if case.name in CHOSEN
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_right_kernels_pass(case: Case) -> None:
    assert gate.check(case, DEVICE, seed=3) < gate.TOLERANCE


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gate._relative

    def scores_are_wrong(found: torch.Tensor, expected: torch.Tensor) -> float:
        return real(found, expected) if found.dim() == 4 else float("nan")

    monkeypatch.setattr(gate, "_relative", scores_are_wrong)
    with pytest.raises(NumericalError, match=r"verify\.1x100000: the kernel is off by nan"):
        gate.check(SMALL[0], DEVICE)


def test_cases_by_pattern() -> None:
    assert [case.name for case in find_cases(("sparse.8x*d64", "verify.4*"))] == [
        "verify.4x100000",
        "sparse.8x4096.d64",
        "sparse.8x1638.d64",
    ]
    assert find_cases(()) == list(CASES)
    with pytest.raises(UsageError, match=r"Did you mean 'verify.4x100000'"):
        find_cases(("verify.4x10000",))
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["kernels", "--case", "verify.*"])
    assert end.value.code == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def test_a_table_is_not_overwritten(tmp_path: Path) -> None:
    from rich.console import Console

    (tmp_path / FILE).write_text("")
    with pytest.raises(UsageError, match=f"holds a {FILE} already"):
        run_kernels((), 3, tmp_path, Console(file=sys.stderr))


def test_a_run_that_is_cut_short_has_shown_and_written_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rich.console import Console

    def cut(kernels: dict[str, list[Any]], repeats: int) -> dict[str, list[float]]:
        if (tmp_path / FILE).exists():
            raise KeyboardInterrupt
        return {name: [1e-3] * repeats for name in kernels}

    monkeypatch.setattr(run, "find_cases", lambda _: [SMALL[3], SMALL[4]])
    monkeypatch.setattr(run, "_require_device", lambda: None)
    monkeypatch.setattr(run, "_compile", lambda _: 0.0)
    monkeypatch.setattr(run, "copy_bandwidth", lambda repeats: [4e12] * repeats)
    monkeypatch.setattr(run, "find_peer", lambda: None)
    monkeypatch.setattr(run, "side_by_side", cut)
    for name in ("check", "build"):
        monkeypatch.setattr(run, name, partial(getattr(run, name), device=DEVICE))
    shown = Console(file=StringIO(), width=200)
    with pytest.raises(KeyboardInterrupt):
        run_kernels((), 2, tmp_path, shown)
    assert "sparse.8x1638           1000.0 us" in shown.file.getvalue()
    assert len((tmp_path / FILE).read_text().splitlines()) == 3
    assert (tmp_path / "environment.json").is_file()


@pytest.mark.gpu
def test_measured_and_written(tmp_path: Path) -> None:
    import pandas as pd
    from rich.console import Console

    run_kernels(("sparse.8x1638", "verify.1x24000"), 3, tmp_path, Console())
    table = pd.read_csv(tmp_path / FILE)
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 6
    assert (table["ours_us"] > 0).all()
    assert (tmp_path / "environment.json").is_file()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_what_is_timed_can_be_called(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # so small that a GPU's cache would take a hundred thousand of them
    monkeypatch.setattr(workloads, "_cache_bytes", lambda _: 0)
    work = build(case, None, DEVICE)
    beside = {
        "verify": {"collecting", "exact"},
        "tree": {"peer", "eager"},
        "sample": {"peer"},
        "accept": {"peer"},
    }
    assert set(work.calls) == {"ours"} | beside.get(case.op, set())
    for calls in work.calls.values():
        for call in calls:
            call()
    assert work.nbytes > 0
