"""Attention kernels timed against the number of query rows, with and without collection."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from specbench.analyze.kernel_calls import (
    COLLECTED,
    Inputs,
    Kind,
    Setup,
    check,
    make_cache,
    make_calls,
)
from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.timing import Call, side_by_side
from specbench.bench.kernels.workloads import pool_count
from specbench.errors import UsageError
from specbench.methods.vegas import VegasParameters

if TYPE_CHECKING:
    from specbench.bench.plan import Plan

COLUMNS = ("query_rows", "collecting", "median_us", "low_us", "high_us", "over_none", "timings")
NONE = "none"
_WINDOW_S = 0.02  # calls of one timing by the clock on the wall together


def case_of(plan: "Plan") -> tuple[Case, Setup]:
    """The model's attention over the longest request, for the batch that decodes."""
    from specbench.engine.compute import uses_triton

    vegas = plan.arms[0].method.parameters
    assert isinstance(vegas, VegasParameters)
    assert vegas.score != "random"
    shape, device = plan.shape, str(plan.config.device)
    case = Case(
        "rows",
        "verify",
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        dim=shape.head_dim,
        batch=plan.rows,
        context=plan.max_len,
    )
    triton = uses_triton(plan.config.attention_backend, device, plan.dtype)
    kind: Kind = "triton" if triton else "reference"
    one_pass = triton and vegas.normaliser != "exact"
    return case, Setup(kind, device, plan.dtype, vegas.score, vegas.share, one_pass)


def check_rows(case: Case, most: int) -> None:
    """Refuse more query rows than there are tokens.

    Raises
    ------
    UsageError
    """
    if most > case.context:
        raise UsageError(
            f"--query-rows {most} exceed the {case.context} tokens of the longest request: "
            "lower them, or raise --context-len"
        )


def time_rows(
    case: Case,
    most: int,
    setup: Setup,
    timings: int,
    timed_one: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """The rows of ``kernel_rows.csv``: 1 to `most` query rows, each way to collect.

    Parameters
    ----------
    case : Case
        Heads, batch and context; its own rows do not matter.
    most : int
    setup : Setup
    timings : int
        Of each kernel, the three ways in turns.
    timed_one : callable
        Called after each number of rows.

    Returns
    -------
    list of dict
        Microseconds of one layer's attention for the whole batch: median, lowest and highest;
        `over_none` is the median over that without collection.

    Raises
    ------
    NumericalError
        A Triton kernel that is not right: nothing is timed after it.
    """
    table = []
    count = pool_count(case.kv_bytes, setup.device)
    caches = [make_cache(case, setup, seed) for seed in range(count)]
    for rows in range(1, most + 1):
        shaped = replace(case, name=f"rows.{rows}", rows=rows)
        if setup.kind == "triton":
            check(shaped, setup)
        inputs = [Inputs(shaped, setup, cache, seed) for seed, cache in enumerate(caches)]
        calls = {NONE: make_calls(inputs, shaped, setup, None)}
        for queries in COLLECTED:
            calls[queries] = make_calls(inputs, shaped, setup, setup.collect(queries))
        timed = side_by_side if setup.graphs else by_wall_clock
        times = timed(calls, timings)
        base = median(times[NONE])
        for name, seconds in times.items():
            middle = median(seconds)
            spread = (1e6 * value for value in (middle, min(seconds), max(seconds)))
            values = rows, name, *spread, middle / base, timings
            table.append(dict(zip(COLUMNS, values, strict=True)))
        timed_one()
    return table


def by_wall_clock(kernels: Mapping[str, Sequence[Call]], timings: int) -> dict[str, list[float]]:
    """Seconds of one call of each kernel, a value a timing, the kernels in turn within a timing."""
    rounds = {}
    for name, calls in kernels.items():
        _seconds(calls, 1)  # warms up
        rounds[name] = max(1, round(_WINDOW_S / max(_seconds(calls, 1), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(timings):
        for name, calls in kernels.items():
            total = _seconds(calls, rounds[name])
            times[name].append(total / (rounds[name] * len(calls)))
    return times


def _seconds(calls: Sequence[Call], rounds: int) -> float:
    import torch

    began = time.perf_counter()
    for _ in range(rounds):
        for call in calls:
            call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
