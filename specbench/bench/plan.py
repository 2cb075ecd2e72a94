"""The plan of a run: everything that is decided before a weight is loaded."""

from dataclasses import dataclass, field, replace
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
from specbench.bench.shards import Cell, Shard, shard_cells
from specbench.bench.workload import Workload, build_workloads, fit_context
from specbench.config import RunConfig
from specbench.errors import OutOfMemoryError, SpecbenchError, UsageError
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE, VLLM
from specbench.results.reading import read_run
from specbench.results.records import RefusedDataset

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
    refused : list of RefusedDataset
        Datasets of the plan that cannot be run.
    cells : list of (str, str), optional
        The (dataset, arm) pairs of the part that will run; None for all.
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
    refused: list[RefusedDataset] = field(default_factory=list)
    cells: list[Cell] | None = None

    def includes(self, dataset: str, arm: str) -> bool:
        """Whether the arm will run on the dataset."""
        return self.cells is None or (dataset, arm) in self.cells

    def part(self, shard: Shard) -> "Plan":
        """One part of the plan, with the batch and the lengths of the whole.

        Raises
        ------
        UsageError
            There are fewer cells than parts.
        """
        plain = [arm.name for arm in self.arms if arm.name in (AUTOREGRESSIVE, VLLM)]
        cells = shard_cells(
            [workload.info.name for workload in self.workloads],
            [arm.name for arm in self.arms],
            plain,
            shard,
        )
        datasets, arms = ({cell[place] for cell in cells} for place in (0, 1))
        return replace(
            self,
            workloads=[w for w in self.workloads if w.info.name in datasets],
            arms=[arm for arm in self.arms if arm.name in arms],
            # said by one part, or every part would end as failed
            refused=self.refused if shard.number == 1 else [],
            cells=cells,
        )


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
    arms = build_arms(config, choices) if arms is None else arms
    spec = str(config.model)
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    tokenizer = load_tokenizer(spec, config.model_revision)
    workloads, refused = build_workloads(config, shape, tokenizer)
    config, shape, note = fit_context(config, shape, workloads)
    choices += [line for w in workloads for line in w.notes] + ([note] if note else [])
    max_len = max(workload.max_len for workload in workloads)
    dtype = getattr(torch, str(config.dtype))
    arms = _able(arms, config, shape, max_len, choices)
    check_graph_modes(arms, config, dtype)
    config, memory, residency = _fit_memory(config, shape, dtype, arms, workloads, max_len, choices)
    arms = _able(arms, config, shape, max_len, choices)  # now with the batch size
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
        refused=refused,
    )


def _able(
    arms: list[Arm], config: RunConfig, shape: "ModelConfig", max_len: int, choices: list[str]
) -> list[Arm]:
    """The arms that can do what is asked; one that cannot is an error unless 'all' brought it."""
    found = []
    for arm in arms:
        try:
            check_capabilities(arm, config)
            if isinstance(arm.method, EngineMethod):
                arm.method.check(config, shape, max_len)
        except SpecbenchError as error:
            if "all" not in config.method:
                raise
            choices.append(f"{arm.name}: left out of 'all': {error}")
        else:
            found.append(arm)
    return found


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
