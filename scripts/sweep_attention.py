"""Attention launches, each timed at one shape: python scripts/sweep_attention.py OUT [CASE...].

Processes compile in parallel first; then one times them all, a launch after another.
"""

import csv
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specbench.bench.kernels import inputs, workloads
from specbench.bench.kernels.cases import Case, find_cases
from specbench.bench.kernels.timing import side_by_side
from specbench.kernels.paged_attention import launch as paged
from specbench.kernels.paged_attention import workspace as paged_workspace
from specbench.kernels.sparse_attention import workspace as sparse

PAGED = ("verify.4x100000", "verify.64x24000", "decode.16x24000")
# of few jobs, where the parts of a job and their merging decide
ALONE = ("verify.1x24000", "decode.1x24000")
SPARSE = ("sparse.8x4096", "sparse.8x1638", "sparse.1x1200.d64", "sparse.64x1400.d64")


def rule(case: Case) -> Any:
    """What the kernels choose themselves."""
    if case.op == "sparse":
        return RULES[1](case.dim, torch.bfloat16, case.batch * case.kv_heads)
    packed = case.rows * case.heads // case.kv_heads
    return RULES[0](case.dim, packed, torch.bfloat16, True)


def launches(case: Case) -> list[Any]:
    """What is tried at a shape."""
    if case.op == "sparse":
        tiles = [(64, 2, 3), (64, 2, 5), (128, 4, 2), (128, 4, 3), (32, 1, 4), (32, 1, 6)]
        if case.batch > 16:
            tiles += [(128, 8, 3), (128, 8, 4), (256, 8, 2), (64, 4, 6)]
        return [
            sparse.Launch(*tile, programs, 2)
            for tile, programs in itertools.product(tiles, (1, 2, 3, 4))
        ]
    if case.batch == 1:
        return [
            replace(rule(case), block_n=n, stages=3, programs=p, min_tiles=t, merge_bytes=b)
            for n, p, t, b in itertools.product(
                (64, 128), (1, 2), (2, 4, 8), (0, 160 * 1024, 2**21)
            )
        ]
    shapes = [
        (block_n, warps, stages, programs)
        for block_n, warps in ((32, 4), (64, 4), (64, 8), (128, 4), (128, 8))
        for stages, programs in ((2, 2), (2, 4), (3, 2), (3, 3), (3, 4), (4, 2), (4, 1))
        # what fits the shared memory
        if (stages - 1) * programs * block_n * case.dim * 4 <= 200 * 1024
    ]
    return [
        replace(rule(case), block_n=n, warps=w, stages=s, programs=p, min_tiles=max(1, 256 // n))
        for n, w, s, p in shapes
    ]


def head_major(case: Case, device: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pool with a page's entries of one head together, under the same shape."""
    keys, values, table = inputs.pool(case, device, seed)
    keys, values = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (keys, values))
    return keys, values, table


def apart(case: Case, device: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pool with keys and values in tensors of their own."""
    keys, values, table = inputs.pool(case, device, seed)
    return keys.contiguous(), values.contiguous(), table


LAYOUTS = {"paired": inputs.pool, "head-major": head_major, "apart": apart}
RULES = paged.default_launch, sparse.default_launch


def times(case: Case, launch: Any, layout: str, repeats: int) -> dict[str, float]:
    """Microseconds of each kernel of the case; none for a launch that cannot be."""
    workloads.pool = LAYOUTS[layout]
    # the jobs were made of the rule before
    paged_workspace.default_launch = lambda *_: launch  # type: ignore[assignment]
    sparse.default_launch = lambda *_: launch
    workloads._CACHES = 4 if repeats else 0  # one pool is enough to compile with
    try:
        calls = workloads.build(case, None).calls
        if not repeats:
            for call in (c for calls_of in calls.values() for c in calls_of[:1]):
                call()
            torch.cuda.synchronize()
            del calls
            torch.cuda.empty_cache()
            return {}
        return {name: 1e6 * median(t) for name, t in side_by_side(calls, repeats).items()}
    except Exception as error:  # a launch that does not compile is a row without times
        print(case.name, launch, type(error).__name__, str(error)[:80], flush=True)
        return {}


def main(out: str, *names: str) -> None:
    cases = find_cases(names or (*PAGED, *ALONE, *SPARSE))
    jobs = [(case, launch, "paired") for case in cases for launch in launches(case)]
    jobs += [(case, rule(case), layout) for case in cases for layout in LAYOUTS]
    with ProcessPoolExecutor(12, get_context("spawn")) as pool:
        list(pool.map(times, *zip(*jobs, strict=True), [0] * len(jobs)))
    rows = []
    for case, launch, layout in jobs:
        measured = times(case, launch, layout, 3)
        rows.append({"case": case.name, "layout": layout, "launch": str(launch)} | measured)
        torch.cuda.empty_cache()
    with open(out, "w", encoding="utf-8") as file:
        fields = ["case", "layout", "launch", "ours", "collecting", "one_pass"]
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    for case, kernel in itertools.product(cases, fields[3:]):
        best = sorted(
            (r for r in rows if r["case"] == case.name and kernel in r), key=lambda r: r[kernel]
        )
        for row in best[:3]:
            print(
                f"{case.name:20} {kernel:11} {row[kernel]:8.1f}  {row['layout']}, {row['launch']}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
