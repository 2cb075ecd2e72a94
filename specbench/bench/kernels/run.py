"""`specbench kernels`: every case checked, measured in turns with its peer, and written down."""

import os
import time
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from specbench.bench.kernels.cases import Case, find_cases
from specbench.bench.kernels.check import check
from specbench.bench.kernels.timing import copy_bandwidth, side_by_side
from specbench.bench.kernels.workloads import COLLECTING, EAGER, EXACT, OURS, PEER, build
from specbench.errors import DataError, UsageError
from specbench.kernels.flash_attention import Peer, find_peer

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    "case",
    "repeat",
    "ours_us",
    "collecting_us",
    "exact_us",
    "peer_us",
    "peer",
    "eager_us",
    "speed_over_peer",
    "speed_over_eager",
    "exact_speed_over_peer",
    "collect_share",
    "exact_share",
    "nbytes",
    "bytes_per_s",
    "copy_bytes_per_s",
    "floor_ratio",
    "error",
)
FILE = "kernels.csv"
_COMPILERS = 12  # processes, each with a context of its own on the device


def run_kernels(
    patterns: tuple[str, ...], repeats: int, output: Path | None, console: "Console"
) -> None:
    """Measure the cases that `patterns` name and print a table; with `output`, write it too.

    Raises
    ------
    UsageError
        No CUDA device, no Triton, an unknown case, or an output folder with a table in it.
    NumericalError
        A kernel that is not right: nothing is timed after it.
    """
    cases = find_cases(patterns)
    if output is not None and (output / FILE).exists():
        raise UsageError(f"{output} holds a {FILE} already; give another --output")
    _require_device()
    seconds = _compile(cases)
    peer = find_peer()
    copies = copy_bandwidth(repeats=repeats)
    console.print(
        f"copy bandwidth {median(copies) / 1e12:.2f} TB/s (read + write); "
        f"peer: {peer.name if peer else 'no FlashAttention-3 found'}; "
        f"kernels compiled in {seconds:.0f} s",
        markup=False,
        highlight=False,
    )
    rows: list[dict[str, Any]] = []
    for case in cases:
        measured = _measure(case, peer, repeats, copies)
        rows += measured
        if output is not None:
            _write(output, rows)
        console.print(_line(case, measured), markup=False, highlight=False)


def _compile(cases: list[Case]) -> float:
    """Seconds of compiling the cases' kernels in processes side by side, before any is timed.

    Each process passes the gate, which calls what will be timed; the results lie in Triton's
    cache. What goes wrong there goes wrong again in this process, which says so.
    """
    begin = time.perf_counter()
    workers = min(len(cases), (os.cpu_count() or 1) - 1, _COMPILERS)
    if workers > 1:
        pool = ProcessPoolExecutor(workers, get_context("spawn"))
        with suppress(BrokenProcessPool), pool:
            wait([pool.submit(check, case) for case in cases])
    return time.perf_counter() - begin


def _require_device() -> None:
    from importlib.util import find_spec

    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "specbench kernels needs a CUDA device; 'specbench doctor' says what is missing"
        )
    if find_spec("triton") is None:
        raise UsageError("specbench kernels needs Triton: pip install triton")


def _measure(
    case: Case, peer: Peer | None, repeats: int, copies: list[float]
) -> list[dict[str, Any]]:
    import torch

    error = check(case)
    torch.cuda.empty_cache()  # what the case before held
    work = build(case, peer)
    times = side_by_side(work.calls, repeats)
    rows = []
    for repeat in range(repeats):
        ours, collecting, exact, other, eager = (
            times[name][repeat] if name in times else None
            for name in (OURS, COLLECTING, EXACT, PEER, EAGER)
        )
        assert ours is not None
        shown = ours if collecting is None else collecting
        rows.append(
            {
                "case": case.name,
                "repeat": repeat,
                "ours_us": 1e6 * ours,
                "collecting_us": _micro(collecting),
                "exact_us": _micro(exact),
                "peer_us": _micro(other),
                "peer": None if other is None else work.peer,
                "eager_us": _micro(eager),
                "speed_over_peer": _ratio(other, shown),
                "speed_over_eager": _ratio(eager, shown),
                "exact_speed_over_peer": _ratio(other, exact),
                "collect_share": None if collecting is None else 1 - ours / collecting,
                "exact_share": None if exact is None else 1 - ours / exact,
                "nbytes": work.nbytes,
                "bytes_per_s": work.nbytes / shown,
                "copy_bytes_per_s": copies[repeat],
                "floor_ratio": shown * copies[repeat] / work.nbytes,
                "error": error,
            }
        )
    return rows


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else 1e6 * seconds


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole


def _line(case: Case, rows: list[dict[str, Any]]) -> str:
    """Medians of a case: time, share of the copy bandwidth, and what stands beside it."""

    def middle(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return median(values) if values else None

    parts = [f"{case.name:<20} {middle('ours_us'):9.1f} us"]
    for name, form, label in (
        ("collecting_us", "9.1f", "collecting, us"),
        ("exact_us", "9.1f", "with exact weights, us"),
        ("peer_us", "9.1f", "peer, us"),
        ("speed_over_peer", "5.2f", "times the peer's speed"),
        ("speed_over_eager", "5.2f", "times eager attention's speed"),
        ("collect_share", "6.1%", "for collecting"),
    ):
        value = middle(name)
        if value is not None:
            parts.append(f"{value:{form}} {label}")
    parts.append(f"{middle('floor_ratio'):5.2f} times the bytes' floor")
    return "  ".join(parts)


def _write(output: Path, rows: list[dict[str, Any]]) -> None:
    """The table anew after every case; beside it, after the first, what it was measured on."""
    import json
    import sys

    import pandas as pd

    from specbench.bench.environment import describe

    try:
        output.mkdir(parents=True, exist_ok=True)
        part = output / f"{FILE}.part"
        pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(part, index=False)
        os.replace(part, output / FILE)
        environment = output / "environment.json"
        if len({row["case"] for row in rows}) == 1:  # asking takes seconds, and it does not change
            text = json.dumps(describe(["specbench", *sys.argv[1:]]), indent=1)
            environment.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write to {output}: {error}") from error
