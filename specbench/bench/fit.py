"""The largest batch that fits into memory, or the one asked for; and room for prompts that wait."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.bench.arms import Arm
from specbench.bench.memory import (
    MemoryPlan,
    available_bytes,
    check_memory,
    device_bytes,
    gib,
    plan_memory,
)
from specbench.bench.residency import Residency, plan_residency
from specbench.bench.workload import Workload
from specbench.config import RunConfig
from specbench.errors import OutOfMemoryError, UsageError
from specbench.methods.base import EngineMethod
from specbench.results.reading import read_run

if TYPE_CHECKING:
    from specbench.engine.model_config import ModelConfig

_LARGEST_BATCH = 64


@dataclass(frozen=True)
class Fit:
    """What fits into memory.

    Attributes
    ----------
    memory : MemoryPlan or None
        Of specbench's own engine.
    residency : Residency
        Of the others.
    kept_tokens : int
        Room for prompts that wait.
    """

    memory: MemoryPlan | None
    residency: Residency
    kept_tokens: int


def _waiting_tokens(workloads: list[Workload], rows: int) -> int:
    """Tokens of the prompts that wait while `rows` others decode, the longest ones."""
    return max(
        sum(
            sorted((len(r.token_ids) for r in w.requests), reverse=True)[
                : max(len(w.requests) - rows, 0)
            ]
        )
        for w in workloads
    )


def rows_of(config: RunConfig, workloads: list[Workload]) -> int:
    """Requests that decode together."""
    return min(config.batch_size or 1, max(len(w.requests) for w in workloads))


def fit_memory(
    config: RunConfig,
    shape: "ModelConfig",
    dtype: Any,
    arms_at: Callable[[int], list[Arm]],
    workloads: list[Workload],
    max_len: int,
    choices: list[str],
) -> tuple[RunConfig, Fit]:
    """Choose the largest batch that fits, or check the one asked for; arms may depend on it."""
    from specbench.engine.compute import uses_triton

    device = str(config.device)
    free = available_bytes(device)

    def fit(arms: list[Arm], rows: int, kept_tokens: int) -> Fit:
        methods = [arm.method for arm in arms if isinstance(arm.method, EngineMethod)]
        served = [arm for arm in arms if not isinstance(arm.method, EngineMethod)]
        memory = None
        if methods:
            memory = plan_memory(
                shape,
                dtype,
                methods,
                rows=rows,
                max_len=max_len,
                prefill_chunk=config.prefill_chunk,
                sampled=config.temperature > 0,
                triton=uses_triton(config.attention_backend, device, dtype),
                kept_tokens=kept_tokens,
            )
            check_memory(memory, free, rows, max_len)
        residency = plan_residency(
            served,
            workloads,
            shape,
            dtype,
            rows=rows,
            ours=memory,
            free=free,
            device_bytes=device_bytes(device),
        )
        return Fit(memory, residency, kept_tokens)

    def plan(batch: int) -> tuple[RunConfig, Fit]:
        chosen = config.model_copy(update={"batch_size": batch})
        arms, rows = arms_at(batch), rows_of(chosen, workloads)
        waiting = _waiting_tokens(workloads, rows) if config.reuse_prompts else 0
        if waiting:
            try:
                found = fit(arms, rows, waiting)
            except OutOfMemoryError:
                pass
            else:
                # engines that take turns lose what they keep
                if not found.residency.exclusive:
                    return chosen, found
        return chosen, fit(arms, rows, 0)

    if config.batch_size is not None:
        return plan(config.batch_size)
    if config.resume and config.output is not None:
        # the memory that is free now may suggest another batch than the run began with
        return plan(read_run(config.output).config["batch_size"])
    for batch in range(min(_LARGEST_BATCH, max(len(w.requests) for w in workloads)), 0, -1):
        try:
            found = plan(batch)
        except OutOfMemoryError:
            if batch == 1:
                raise
            continue
        choices.append(f"batch-size {batch}: the largest that fits {gib(free or 0)} of free memory")
        return found
    raise UsageError("no prompts to choose a batch for")
