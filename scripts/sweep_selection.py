"""Launches of the selection, each timed at a few shapes: python scripts/sweep_selection.py OUT.

Scores are of 16 bits, as Vegas has them with a model of 16 bits.

Processes compile in parallel first; then one times them all, the better guesses first, and writes
each row as it comes. A row has the lists that took the slow path, too.
"""

import csv
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specbench.bench.kernels.timing import side_by_side
from specbench.bench.kernels.workloads import pool_count
from specbench.kernels.selection import triton as kernels
from specbench.kernels.selection.workspace import (
    FEW,
    FEW_SHORT,
    MANY,
    SHORT,
    Launch,
    SelectionWorkspace,
    default_launch,
)

# layers, requests, sets, scores of a list, entries that are kept of it
SHAPES = {
    "36x4x8x100000": (36, 4, 8, 100_000, 7_000),
    "24x64x2x20000": (24, 64, 2, 20_000, 1_400),
    "24x16x2x24000": (24, 16, 2, 24_000, 1_200),
    "24x1x2x24000": (24, 1, 2, 24_000, 1_200),
}
Shape = tuple[int, int, int, int, int]
REPEATS = 3
FIELDS = ["shape", "launch", "us", "slow", "failed"]


def launches(shape: Shape) -> list[Launch]:
    """What is tried; the rule first."""
    layers, requests, sets, length, width = shape
    rows, sms = layers * requests * sets, 132
    own = default_launch(rows, length, width, sms, 2)
    if rows <= sms:
        tried = [own, FEW_SHORT, FEW, MANY, replace(FEW_SHORT, kept=8)]
        tried += [replace(FEW_SHORT, warps=w, depth=d) for w, d in ((8, 16), (8, 32), (32, 8))]
        tried += [replace(FEW_SHORT, samples=n) for n in (1024, 2048, 8192)]
        tried.append(replace(FEW_SHORT, margin=6))
        return list(dict.fromkeys(tried))
    if width > 4_000:
        tried = [own, FEW, replace(MANY, depth=16), replace(MANY, samples=8192)]
        tried += [replace(MANY, margin=m) for m in (4, 6)]
        tried += [replace(MANY, run=16), replace(MANY, samples=8192, margin=6)]
        tried += [replace(MANY, depth=d, programs_per_sm=3, registers=80) for d in (8, 16)]
        tried.append(replace(MANY, kept=32, depth=16, programs_per_sm=3, registers=80))
        tried += [replace(FEW, depth=d, margin=6) for d in (16, 32)]
        tried.append(replace(MANY, depth=16, warps=4, kept=128, registers=255))
        return list(dict.fromkeys(tried))
    tried = [own, MANY, SHORT, replace(MANY, kept=16), replace(MANY, kept=16, depth=16)]
    tried += [replace(SHORT, samples=n) for n in (1024, 2048)]
    tried += [replace(SHORT, margin=m) for m in (5, 6)]
    tried += [replace(SHORT, depth=16), replace(SHORT, run=16)]
    for programs, registers in ((6, 80), (5, 96)):
        tried.append(replace(SHORT, depth=16, programs_per_sm=programs, registers=registers))
    tried.append(replace(SHORT, kept=16, depth=16, programs_per_sm=6, registers=80))
    tried += [replace(SHORT, warps=2, kept=64, programs_per_sm=8, depth=d) for d in (16, 32)]
    tried.append(replace(SHORT, warps=2, kept=64, programs_per_sm=8, samples=2048))
    tried.append(replace(MANY, kept=16, depth=16, programs_per_sm=3, registers=80))
    return list(dict.fromkeys(tried))


def inputs(shape: Shape, device: str, seed: int) -> Tensor:
    """Scores skewed as weights of attention are: most are next to nothing."""
    generator = torch.Generator(device).manual_seed(seed)
    scores = torch.empty(shape[:4], device=device).exponential_(generator=generator).pow_(4)
    return scores.bfloat16()


def call(
    shape: Shape, launch: Launch, scores: Tensor
) -> tuple[Callable[[], object], SelectionWorkspace]:
    """One selection of all lists, and its workspace."""
    layers, requests, sets, length, width = shape
    device = str(scores.device)
    workspace = SelectionWorkspace(layers * requests * sets, length, width, device, launch)
    ranked = torch.full((requests,), length, dtype=torch.int32, device=device)
    keep = torch.full_like(ranked, width)
    out = torch.empty(layers, requests, sets, width, dtype=torch.int32, device=device)
    chosen = partial(kernels.select, scores, ranked, keep, width, workspace=workspace, out=out)
    return chosen, workspace


def compile_one(shape: Shape, launch: Launch, device: str = "cuda") -> str | None:
    """Compile a launch; why it cannot be, or None."""
    try:
        # shapes are no constants of the kernel: one layer will do, but for the strides
        call(
            (1, *shape[1:]),
            launch,
            torch.zeros(1, *shape[1:4], dtype=torch.bfloat16, device=device),
        )[0]()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # such a launch is a row without a time
        return reason(error)
    return None


def reason(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:80]}"


def slow_lists(shape: Shape, launch: Launch, scores: Tensor) -> int:
    """Lists of a call that are left to the slow path: counted before it takes them."""
    chosen, workspace = call(shape, launch, scores)
    rescue = kernels._rescue
    counted: list[int] = []

    class Counting:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
            counted.append(int(workspace.queue[1]))
            return rescue[grid]

    kernels._rescue = Counting()
    try:
        chosen()
    finally:
        kernels._rescue = rescue
    return counted[0]


def times(shape: Shape, launch: Launch, pools: list[Tensor]) -> float:
    """Microseconds of a call."""
    calls = [call(shape, launch, scores)[0] for scores in pools]
    return 1e6 * median(side_by_side({"select": calls}, REPEATS)["select"])


def main(out: str) -> None:
    began = time.perf_counter()
    jobs = [(shape, launch) for shape in SHAPES.values() for launch in launches(shape)]
    with ProcessPoolExecutor(14, get_context("spawn")) as executor:
        failed = dict(zip(jobs, executor.map(compile_one, *zip(*jobs, strict=True)), strict=True))
    print(f"compiled {len(jobs)} launches in {time.perf_counter() - began:.0f} s", flush=True)
    with open(out, "w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name, shape in SHAPES.items():
            nbytes = 2 * shape[0] * shape[1] * shape[2] * shape[3]
            pools = [inputs(shape, "cuda", seed) for seed in range(pool_count(nbytes, "cuda"))]
            rows: list[dict[str, Any]] = []
            for launch in launches(shape):
                row: dict[str, Any] = {"shape": name, "launch": str(launch)}
                row["failed"] = failed[shape, launch]
                if row["failed"] is None:
                    try:
                        row["us"] = times(shape, launch, pools)
                        row["slow"] = slow_lists(shape, launch, pools[0])
                    except Exception as error:
                        row["failed"] = reason(error)
                rows.append(row)
                writer.writerow(row)
                file.flush()
            timed = sorted((row for row in rows if "slow" in row), key=lambda row: row["us"])
            print(f"{name}: the rule {rows[0].get('us', float('nan')):.1f} us")
            for row in timed[:4]:
                print(f"{row['us']:8.1f} us {row['slow']:4} slow  {row['launch']}", flush=True)
            del pools
            torch.cuda.empty_cache()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main(*sys.argv[1:])
