"""The plan of a run: everything that is decided before a weight is loaded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.bench.arms import Arm, build_arms, check_capabilities
from specbench.bench.defaults import resolve_machine
from specbench.bench.memory import MemoryPlan, available_bytes, check_memory, gib, plan_memory
from specbench.bench.workload import Workload, build_workloads, fit_context
from specbench.config import RunConfig
from specbench.errors import OutOfMemoryError, UsageError
from specbench.results.reading import read_run

if TYPE_CHECKING:
    import torch

    from specbench.engine.model_config import ModelConfig

_LARGEST_BATCH = 64


@dataclass(frozen=True)
class Plan:
    """What will run.

    Attributes
    ----------
    config : RunConfig
        With everything chosen.
    choices : list of str
        What was chosen for the user, and why.
    arms : list of Arm
    workloads : list of Workload
    memory : MemoryPlan
    max_len : int
        Prompt and new tokens of the longest request.
    rows : int
        Requests that decode together.
    dtype : torch.dtype
        Of weights and KV cache.
    """

    config: RunConfig
    choices: list[str]
    arms: list[Arm]
    workloads: list[Workload]
    memory: MemoryPlan
    max_len: int
    rows: int
    dtype: "torch.dtype"


def make_plan(config: RunConfig) -> Plan:
    """Choose what the user left open and refuse what cannot run.

    Raises
    ------
    SpecbenchError
        An unknown name, unreadable data, a context beyond the model's, too little memory.
    """
    import torch

    from specbench.engine.loader import read_model_config
    from specbench.engine.tokenizer import load_tokenizer

    config, choices = resolve_machine(config)
    arms = build_arms(config)
    spec = str(config.model)
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    tokenizer = load_tokenizer(spec, config.model_revision)
    workloads = build_workloads(config, shape, tokenizer)
    config, shape, note = fit_context(config, shape, workloads)
    choices += [line for w in workloads for line in w.notes] + ([note] if note else [])
    max_len = max(workload.max_len for workload in workloads)
    dtype = getattr(torch, str(config.dtype))
    config, memory = _fit_memory(config, shape, dtype, arms, workloads, max_len, choices)
    for arm in arms:
        check_capabilities(arm, config)
    return Plan(config, choices, arms, workloads, memory, max_len, _rows(config, workloads), dtype)


def _rows(config: RunConfig, workloads: list[Workload]) -> int:
    return min(config.batch_size or 1, max(len(w.requests) for w in workloads))


def _fit_memory(
    config: RunConfig,
    shape: "ModelConfig",
    dtype: Any,
    arms: list[Arm],
    workloads: list[Workload],
    max_len: int,
    choices: list[str],
) -> tuple[RunConfig, MemoryPlan]:
    """Choose the largest batch that fits, or check the one asked for."""
    device = str(config.device)
    free = available_bytes(device)

    def plan(batch: int) -> tuple[RunConfig, MemoryPlan]:
        chosen = config.model_copy(update={"batch_size": batch})
        memory = plan_memory(
            shape,
            dtype,
            [arm.method for arm in arms],
            rows=_rows(chosen, workloads),
            max_len=max_len,
            prefill_chunk=config.prefill_chunk,
            sampled=config.temperature > 0,
        )
        check_memory(memory, free, _rows(chosen, workloads), max_len)
        return chosen, memory

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
