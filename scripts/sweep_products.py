"""Launches of the products of a few rows, beside cuBLAS: python scripts/sweep_products.py OUT.

Each is timed as a graph of launches over the weights of all layers, which no cache holds. Processes
compile in parallel first.
"""

import csv
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.bench.kernels.timing import side_by_side
from specbench.kernels.head.triton import SCRATCH_TILES, HeadLaunch, head_argmax
from specbench.kernels.launch import Scratch
from specbench.kernels.linear.plan import LinearLaunch
from specbench.kernels.linear.triton import linear_prenorm
from specbench.kernels.mlp.triton import gate_up_small, silu_mul
from specbench.kernels.norm.triton import prenorm, rms_norm
from specbench.kernels.qkv.project import project_rope_write_kv
from specbench.kernels.qkv.triton import rope_write_kv

# Qwen2.5-0.5B
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB = 896, 14, 2, 64, 4864, 151_936
WIDTH, LAYERS = (HEADS + 2 * KV_HEADS) * DIM, 24
ROWS = (1, 16, 64)
# launches whose warps share K: block_n, block_k, splits, num_warps, num_stages
SHARED: dict[str, tuple[tuple[int, int, int, int, int], ...]] = {
    "qkv": ((16, 1024, 1, 8, 1), (32, 1024, 1, 8, 1), (16, 256, 1, 4, 4), (32, 256, 1, 8, 3)),
    "o": ((8, 1024, 1, 8, 1), (16, 1024, 1, 8, 1), (32, 1024, 1, 8, 1), (16, 256, 1, 4, 4)),
    "gate_up": ((32, 128, 1, 4, 5), (32, 256, 1, 8, 3), (16, 256, 1, 4, 4)),
    "down": ((8, 512, 1, 8, 5), (16, 512, 2, 8, 4), (32, 512, 4, 8, 4), (32, 1024, 5, 8, 1)),
    "head": (),
}
Job = tuple[str, int, Any]


def randn(*shape: int) -> Tensor:
    """Fresh bf16 numbers of the size of weights."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.03


def launches(op: str) -> list[Any]:
    """What is tried; None is the library's way."""
    tried: list[Any] = [None]
    if op == "head":
        for n, k, each, stages in itertools.product((32, 64, 128), (64, 128), (1, 2, 4), (3, 5)):
            tried.append(HeadLaunch(n, k, each, num_stages=stages))
    elif op == "qkv":
        for k, splits, warps in itertools.product((64, 128, 256), (1, 3, 7), (2, 4)):
            tried.append(LinearLaunch(DIM, k, splits, warps, 3))
    elif op == "gate_up":
        for n, k, warps, stages in itertools.product((16, 32, 64), (64, 128, 256), (2, 4), (3, 5)):
            tried.append(LinearLaunch(n, k, 1, warps, stages))
    else:
        splits = (1, 3, 7) if op == "o" else (3, 5, 9)
        for n, k, s, warps in itertools.product((16, 32, 64), (64, 128), splits, (2, 4)):
            tried.append(LinearLaunch(n, k, s, warps, 4))
    shared = [LinearLaunch(*sizes, over_k=True) for sizes in SHARED[op]]
    early = [replace(launch, early=True) for launch in shared]
    unfetched = [replace(launch, prefetch=False) for launch in shared]
    tried += shared
    return tried + [replace(launch, pdl=False) for launch in tried[1:]] + early + unfetched


def calls(op: str, rows: int, launch: Any) -> list[Callable[[], object]]:
    """One call a layer."""
    norm, scratch = randn(HIDDEN) + 1, Scratch.make("cuda", 2**23, max(SCRATCH_TILES, 2**12))
    x, residual = randn(rows, HIDDEN), randn(rows, HIDDEN)
    begun = prenorm(x, norm)
    table = torch.randn(100, DIM, device="cuda")
    index = torch.arange(rows, device="cuda") + 16
    made: list[Callable[[], object]] = []
    for _ in range(1 if op == "head" else LAYERS):
        if op == "qkv":
            weight, bias = randn(WIDTH, HIDDEN), randn(WIDTH)
            place = (
                None,
                table,
                table,
                index,
                index,
                *(randn(9, 16, KV_HEADS, DIM) for _ in "kv"),
                1e-6,
            )
            if launch is None:
                made.append(
                    lambda w=weight, b=bias, p=place: rope_write_kv(
                        F.linear(rms_norm(x, norm, 1e-6), w), b, *p
                    )
                )
            else:
                made.append(
                    lambda w=weight, b=bias, p=place: project_rope_write_kv(
                        begun, w, b, *p, launch=launch, scratch=scratch
                    )
                )
        elif op == "gate_up":
            weight = randn(2 * INNER, HIDDEN)
            if launch is None:
                made.append(lambda w=weight: silu_mul(F.linear(rms_norm(x, norm, 1e-6), w)))
            else:
                made.append(lambda w=weight: gate_up_small(begun, w, eps=1e-6, launch=launch))
        elif op == "head":
            weight = randn(VOCAB, HIDDEN)
            if launch is None:
                made.append(lambda w=weight: F.linear(rms_norm(x, norm, 1e-6), w).max(-1))
            else:
                made.append(
                    lambda w=weight: head_argmax(begun, w, eps=1e-6, launch=launch, scratch=scratch)
                )
        else:
            inner = HEADS * DIM if op == "o" else INNER
            weight, wide = randn(HIDDEN, inner), randn(rows, inner)
            if launch is None:
                made.append(lambda w=weight, a=wide: residual.add_(F.linear(a, w)))
            else:
                made.append(
                    lambda w=weight, a=wide: linear_prenorm(
                        a, w, norm=norm, residual=residual, launch=launch, scratch=scratch
                    )
                )
    return made


def measure(op: str, rows: int, launch: Any, repeats: int) -> float | None:
    """Microseconds of a call; None for a launch that cannot be."""
    try:
        work = calls(op, rows, launch)
        if not repeats:
            work[0]()
            torch.cuda.synchronize()
            return None
        return 1e6 * median(side_by_side({"it": work}, repeats)["it"])
    except Exception as error:  # a launch that does not compile is a row without a time
        print(op, rows, launch, type(error).__name__, str(error)[:80], flush=True)
        return None


def main(out: str) -> None:
    jobs: list[Job] = [
        (op, rows, launch)
        for op in ("qkv", "o", "gate_up", "down", "head")
        for rows in ROWS
        for launch in launches(op)
    ]
    # 1 and 16 rows are one tile
    compiled = [job for job in jobs if job[1] != 16]
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:
        list(pool.map(measure, *zip(*compiled, strict=True), [0] * len(compiled), chunksize=8))
    found = []
    with open(out, "w", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["op", "rows", "launch", "us"])
        for job in jobs:
            found.append((*job, measure(*job, 3)))
            writer.writerow(found[-1])
            file.flush()
    for op, rows in sorted({job[:2] for job in jobs}):
        own = [f for f in found if f[:2] == (op, rows) and f[3] is not None]
        library = next((f[3] for f in own if f[2] is None), float("nan"))
        for _, _, launch, us in sorted(own, key=lambda f: f[3])[:3]:
            print(f"{op:8} {rows:3} rows  {us:7.2f} us  library {library:7.2f}  {launch}")


if __name__ == "__main__":
    main(*sys.argv[1:])
