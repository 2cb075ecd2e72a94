"""The plan of a run: everything that is decided before a weight is loaded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.bench.arms import Arm, build_arms, check_capabilities, check_graph_modes
from specbench.bench.defaults import resolve_machine
from specbench.bench.memory import (
    MemoryPlan,
    available_bytes,
    check_memory,
    device_bytes,
    gib,
    plan_memory,
)
from specbench.bench.residency import Residency, plan_residency
from specbench.bench.workload import Workload, build_workloads, fit_context
from specbench.config import RunConfig
from specbench.errors import OutOfMemoryError, UsageError
from specbench.methods import METHODS
from specbench.methods.base import EngineMethod
from specbench.results.cells import VLLM
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
    shape : ModelConfig
        The model's, RoPE scaling included.
    memory : MemoryPlan or None
        Of specbench's own engine; None where no arm runs in it.
    residency : Residency
        The memory of the other engines, and whether they take turns.
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
    shape: "ModelConfig"
    memory: MemoryPlan | None
    residency: Residency
    max_len: int
    rows: int
    dtype: "torch.dtype"


def make_plan(config: RunConfig, arms: list[Arm] | None = None) -> Plan:
    """Choose what the user left open and refuse what cannot run.

    Parameters
    ----------
    config : RunConfig
    arms : list of Arm, optional
        By default those that `config` asks for.

    Raises
    ------
    SpecbenchError
        An unknown name, unreadable data, a context beyond the model's, too little memory.
    """
    import torch

    from specbench.engine.loader import read_model_config
    from specbench.engine.tokenizer import load_tokenizer

    config, choices = resolve_machine(config)
    arms = build_arms(config) if arms is None else arms
    if "all" in config.method and not any(arm.method.name == VLLM for arm in arms):
        choices.append("vllm: left out of 'all', not installed here; --vllm-python names another")
    if "all" in config.method:
        choices += [
            f"{name}: left out of 'all', no draft for {config.model}; --draft-weights names one"
            for name in METHODS
            if not METHODS.get(name).in_all(config)
        ]
    spec = str(config.model)
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    tokenizer = load_tokenizer(spec, config.model_revision)
    workloads = build_workloads(config, shape, tokenizer)
    config, shape, note = fit_context(config, shape, workloads)
    choices += [line for w in workloads for line in w.notes] + ([note] if note else [])
    max_len = max(workload.max_len for workload in workloads)
    dtype = getattr(torch, str(config.dtype))
    for arm in arms:
        check_capabilities(arm, config)
        if isinstance(arm.method, EngineMethod):
            arm.method.check(config, shape, max_len)
    check_graph_modes(arms, config, dtype)
    config, memory, residency = _fit_memory(config, shape, dtype, arms, workloads, max_len, choices)
    for arm in arms:
        check_capabilities(arm, config)  # now with the batch size
    return Plan(
        config=config,
        choices=choices,
        arms=arms,
        workloads=workloads,
        shape=shape,
        memory=memory,
        residency=residency,
        max_len=max_len,
        rows=_rows(config, workloads),
        dtype=dtype,
    )


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
) -> tuple[RunConfig, MemoryPlan | None, Residency]:
    """Choose the largest batch that fits, or check the one asked for."""
    from specbench.engine.compute import uses_triton

    device = str(config.device)
    free = available_bytes(device)
    methods = [arm.method for arm in arms if isinstance(arm.method, EngineMethod)]
    served = [arm for arm in arms if not isinstance(arm.method, EngineMethod)]

    def plan(batch: int) -> tuple[RunConfig, MemoryPlan | None, Residency]:
        chosen = config.model_copy(update={"batch_size": batch})
        rows = _rows(chosen, workloads)
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
        return chosen, memory, residency

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
