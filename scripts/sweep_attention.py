"""Attention launches, each timed at one shape: python scripts/sweep_attention.py OUT [CASE...].

Processes compile in parallel first; then one times them all, a launch after another, and writes
each row as it comes. Of paged attention a row has the pass without collection, with collection in
one pass, with it but without its stores (nothing is ranked), with scores of 16 bits, and with
votes of all rows (of 16 bits too). Of selected attention and of trees it has the one kernel.
"""

import csv
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from operator import itemgetter
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specbench.bench.kernels import inputs
from specbench.bench.kernels.cases import Case, find_cases
from specbench.bench.kernels.timing import side_by_side
from specbench.bench.kernels.workloads import pool_count
from specbench.kernels.paged_attention import launch as paged
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.paged_attention.triton import PagedAttention
from specbench.kernels.sparse_attention import workspace as sparse
from specbench.kernels.sparse_attention.triton import sparse_attention

CASES = ("verify.4x100000", "verify.64x24000", "verify.16x24000")
PLAIN, ONE_PASS, UNSTORED, NARROW = "plain", "one_pass", "unstored", "narrow"
ALL = "all_rows"
KINDS = (PLAIN, ONE_PASS, UNSTORED, NARROW, ALL)
REPEATS = 3
PROCESSORS = 132  # of an H200


@dataclass(frozen=True)
class Inputs:
    """What calls of one case read; without entries where they are only to be compiled."""

    q: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    lens: Tensor
    slots: Tensor
    mask: Tensor

    @classmethod
    def make(cls, case: Case, device: str, seed: int | None) -> "Inputs":
        """Random inputs; none without a seed, but of the same strides."""
        rows = 1 if case.op == "sparse" else case.rows
        q = inputs.randn((case.batch, rows, case.heads, case.dim), device, seed or 0)
        slots = torch.zeros(case.batch, case.kv_heads, case.entries, device=device).int()
        lens = torch.full((case.batch,), case.context, device=device).int()
        mask = torch.ones(case.batch, rows, rows, dtype=torch.bool, device=device).tril()
        if seed is None:
            page = torch.zeros(1, inputs.PAGE, case.kv_heads, 2 * case.dim, device=device)
            keys, values = page.to(q.dtype).split(case.dim, -1)
            table = torch.zeros(case.batch, -(-case.context // inputs.PAGE), device=device).int()
            return cls(q, keys, values, table, torch.zeros_like(lens), slots, mask)
        keys, values, table = inputs.pool(case, device, seed)
        if case.op == "sparse":
            slots = inputs.selected(case, table, device, seed)
        return cls(q, keys, values, table, lens, slots, mask)


def rule(case: Case) -> Any:
    """What the kernels choose themselves."""
    if case.op == "sparse":
        return sparse.default_launch(case.dim, torch.bfloat16, case.batch * case.kv_heads)
    packed = case.rows * case.heads // case.kv_heads
    keys = case.batch * case.kv_heads * case.context // PROCESSORS
    return paged.default_launch(case.dim, packed, torch.bfloat16, case.op == "verify", keys)


def sparse_launches(case: Case, own: sparse.Launch) -> list[sparse.Launch]:
    """What is tried of the kernel of selected entries; the rule first."""
    tried = [own, *(replace(own, early=tiles) for tiles in (0, 1, 2, 4))]
    if case.dim > 64:
        shapes = [(64, 2, 3, 3), (64, 8, 3, 2), (64, 4, 4, 2), (64, 4, 2, 4), (128, 4, 2, 3)]
        # narrower tiles share a short list more evenly
        shapes += [(32, 2, 4, 3), (32, 2, 6, 3), (32, 4, 4, 3), (32, 2, 4, 4), (32, 1, 4, 4)]
        narrow = [sparse.Launch(32, 2, stages, 3, 4, early=2) for stages in (4, 6)]
        return [*tried, *(sparse.Launch(*shape, 2) for shape in shapes), *narrow]
    cut = itertools.product([(64, 2, 3), (64, 4, 3), (128, 4, 2)], (3, 4))
    tried += [sparse.Launch(*tile, programs, 2) for tile, programs in cut]
    if case.batch > 16:
        tried += [sparse.Launch(128, 4, 2, 4, 1, early=tiles) for tiles in (0, 2)]
        tried.append(sparse.Launch(256, 8, 2, 2, 2))
    return tried


def tree_launches(own: paged.Launch) -> list[paged.Launch]:
    """What is tried of trees, whose rows fill several tiles; the rule first."""
    tiles = [(128, 8, 1), (64, 4, 2), (64, 4, 3), (128, 8, 2)]
    return [own] + [
        replace(own, block_m=m, block_n=n, warps=warps, programs=programs, stages=stages)
        for (m, warps, programs), n, stages in itertools.product(tiles, (32, 64, 128), (2, 3, 4))
    ]


def launches(case: Case) -> list[Any]:
    """What is tried at a shape; the rule first."""
    own = rule(case)
    if case.op == "sparse":
        return list(dict.fromkeys(sparse_launches(case, own)))
    if case.op == "tree":
        return list(dict.fromkeys(tree_launches(own)))
    tried = [own]
    tried += [replace(own, hold=hold) for hold in (1, 2, 4, 8)]
    tried += [replace(own, hold=1, store=""), replace(own, votes="turned")]
    tried += [replace(own, partials=fate) for fate in ("keep", "discard")]
    tried.append(replace(own, narrow=False))
    if own.block_m < 64:
        half = replace(own, block_n=32, min_tiles=8, stages=5, hold=16)
        # warp-group products: no thread waits for those of another warp
        wide = replace(own, block_m=64, stages=3, votes="probe", hold=1)
        tried += [half, replace(half, stages=6), wide, replace(wide, partials="discard")]
    else:
        half = replace(own, block_n=64, min_tiles=4, stages=3, hold=8)
        whole = replace(own, block_n=128, min_tiles=2, stages=3, hold=2)
        tried += [whole, half, replace(half, stages=4), replace(half, stages=5, hold=1)]
    every = replace(own, votes="weights")
    tried += [every, *(replace(every, hold=hold) for hold in (1, 2, 4, 8))]
    tried += [replace(every, partials=fate) for fate in ("", "keep", "discard")]
    tried += [replace(half, votes="weights"), replace(half, votes="weights", stages=4)]
    if case.batch == 1:
        tried += [
            replace(own, min_tiles=tiles, merge_bytes=most)
            for tiles, most in itertools.product((2, 4, 8), (0, 160 * 1024, 2**21))
        ]
    return list(dict.fromkeys(tried))


def kernels(case: Case, launch: Any, made: Inputs) -> dict[str, Callable[[], object]]:
    """A call of each kind."""
    x, scale = made, case.dim**-0.5
    device, out = str(x.q.device), torch.empty_like(x.q)
    if case.op == "sparse":
        work = sparse.SparseAttentionWorkspace(
            *(case.batch, case.heads, case.kv_heads, case.dim, x.q.dtype, device), launch
        )
        tail = torch.full((case.batch, 1), -1, dtype=torch.int32, device=device)
        call = partial(sparse_attention, x.q, x.keys, x.values, x.slots, tail, scale)
        return {PLAIN: partial(call, workspace=work, out=out, settled=True)}

    def attention(collect: Collect | None) -> PagedAttention:
        return PagedAttention(
            *(case.batch, case.rows, case.heads, case.kv_heads, case.dim, case.context),
            *(x.q.dtype, device, collect, collect is not None, launch),
        )

    everyone = launch.votes == "weights"
    plain, normed = attention(None), attention(Collect())
    voted = attention(Collect(queries="all")) if everyone else normed
    q_lens = torch.full_like(x.lens, case.rows)
    common = x.q, x.keys, x.values, x.table, x.lens, q_lens, scale
    if case.op == "tree":
        return {PLAIN: partial(plain, *common, out=out, tree_mask=x.mask)}
    norm = torch.zeros(case.batch, normed.collecting.rows, case.heads, device=device)
    shape = case.batch, case.kv_heads, case.context
    scores = torch.empty(shape, device=device)
    narrow = torch.empty(shape, dtype=torch.bfloat16, device=device)
    ranked = (x.lens - case.rows + 1).clamp(min=0)
    one_pass = partial(normed, *common, out=out, norm=norm)
    norms = torch.zeros(case.batch, voted.collecting.rows, case.heads, device=device)
    all_rows = partial(voted, *common, out=out, norm=norms, ranked=ranked, scores=narrow)
    return {
        ALL: all_rows,
        PLAIN: partial(plain, *common, out=out),
        ONE_PASS: partial(one_pass, ranked=ranked, scores=scores),
        UNSTORED: partial(one_pass, ranked=torch.zeros_like(ranked), scores=scores),
        NARROW: partial(one_pass, ranked=ranked, scores=narrow),
    }


def wanted(case: Case, launch: Any) -> tuple[str, ...]:
    """Kinds that differ from another launch's: collection alone does in how it votes and stores."""
    own = rule(case)
    if case.op in ("sparse", "tree"):
        return (PLAIN,)
    if launch == own:
        return KINDS if own.votes == "weights" else KINDS[:-1]
    if launch.votes == "weights":
        # tiles of 64 rows have such votes of all rows alone
        return (ONE_PASS, ALL) if launch.block_m < 64 else (ALL,)
    same = replace(launch, votes=own.votes, hold=own.hold, store=own.store) == own
    return (ONE_PASS, UNSTORED, NARROW) if same else (PLAIN, ONE_PASS)


def compile_one(case: Case, launch: Any, device: str = "cuda") -> str | None:
    """Compile what is wanted; why it cannot be, or None."""
    try:
        calls = kernels(case, launch, Inputs.make(case, device, None))
        for kind in wanted(case, launch):
            calls[kind]()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # such a launch is a row without times
        return reason(error)
    return None


def reason(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:80]}"


def times(case: Case, launch: Any, pools: list[Inputs]) -> dict[str, float]:
    """Microseconds of a call of each kind that is wanted."""
    calls: dict[str, list[Callable[[], object]]] = {kind: [] for kind in wanted(case, launch)}
    for made in pools:
        for kind, call in kernels(case, launch, made).items():
            if kind in calls:
                calls[kind].append(call)
    return {kind: 1e6 * median(t) for kind, t in side_by_side(calls, REPEATS).items()}


def show(case: Case, rows: list[dict[str, Any]]) -> None:
    """The rule's row, and the best of each kind."""
    seen = [rows[0]]
    for kind in (ONE_PASS, PLAIN, ALL):
        seen += sorted((r for r in rows if kind in r), key=itemgetter(kind))[:4]
    print(f"{case.name:19}" + "".join(f"{kind:>10}" for kind in KINDS))
    for row in {row["launch"]: row for row in seen}.values():
        cells = "".join(f"{row[k]:10.1f}" if k in row else " " * 10 for k in KINDS)
        print(f"{'':19}{cells}  {row['launch']}", flush=True)


def main(out: str, *names: str) -> None:
    began = time.perf_counter()
    cases = find_cases(names or CASES)
    jobs = [(case, launch) for case in cases for launch in launches(case)]
    with ProcessPoolExecutor(14, get_context("spawn")) as executor:
        failed = dict(zip(jobs, executor.map(compile_one, *zip(*jobs, strict=True)), strict=True))
    print(f"compiled {len(jobs)} launches in {time.perf_counter() - began:.0f} s", flush=True)
    with open(out, "w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["case", "launch", *KINDS, "failed"])
        writer.writeheader()
        for case in cases:
            count = pool_count(case.kv_bytes, "cuda")
            pools = [Inputs.make(case, "cuda", seed) for seed in range(count)]
            rows: list[dict[str, Any]] = []
            for launch in launches(case):
                row: dict[str, Any] = {"case": case.name, "launch": str(launch)}
                row["failed"] = failed[case, launch]
                if row["failed"] is None:
                    try:
                        row |= times(case, launch, pools)
                    except Exception as error:
                        row["failed"] = reason(error)
                rows.append(row)
                writer.writerow(row)
                file.flush()
            show(case, rows)
            del pools
            torch.cuda.empty_cache()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main(*sys.argv[1:])
