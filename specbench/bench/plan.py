"""The plan of a run: everything that is decided before a weight is loaded."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specbench.bench.arms import Arm, build_arms, check_capabilities, check_graph_modes
from specbench.bench.defaults import resolve_machine
from specbench.bench.fit import fit_memory, rows_of
from specbench.bench.memory import MemoryPlan
from specbench.bench.residency import Residency
from specbench.bench.schedule import read_schedule
from specbench.bench.scheduled import resolve, settle
from specbench.bench.shards import Cell, Shard, shard_cells
from specbench.bench.tuned import tuned_arms
from specbench.bench.workload import Workload, build_workloads, fit_context
from specbench.config import RunConfig
from specbench.errors import SpecbenchError
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE, VLLM
from specbench.results.records import RefusedDataset

if TYPE_CHECKING:
    import torch

    from specbench.engine.model_config import ModelConfig


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
    kept_tokens : int
        Room for the KV of prompts that wait for their next pass.
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
    kept_tokens: int = 0

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
            self.cells,
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

    schedule = read_schedule(config.schedule) if config.schedule else None
    if schedule:
        config = settle(schedule, config)
    config, choices = resolve_machine(config)
    if arms is None:
        arms = build_arms(config, choices) + tuned_arms(config, choices)
    spec = str(config.model)
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    tokenizer = load_tokenizer(spec, config.model_revision, config.trust_remote_code)
    workloads, refused = build_workloads(config, shape, tokenizer)
    config, shape, note = fit_context(config, shape, workloads)
    choices += [line for w in workloads for line in w.notes] + ([note] if note else [])
    max_len = max(workload.max_len for workload in workloads)
    dtype = getattr(torch, str(config.dtype))
    arms = _able(arms, config, shape, max_len, choices)
    check_graph_modes(arms, config, dtype)

    able = arms

    def picked(batch: int) -> tuple[list[Arm], list[Cell] | None, list[str]]:
        return resolve(schedule, able, workloads, batch, config) if schedule else (able, None, [])

    config, fit = fit_memory(
        config, shape, dtype, lambda batch: picked(batch)[0], workloads, max_len, choices
    )
    arms, cells, said = picked(config.batch_size or 1)
    choices += said
    arms = _able(arms, config, shape, max_len, choices)  # now with the batch size
    return Plan(
        config=config,
        choices=choices,
        arms=arms,
        workloads=workloads,
        shape=shape,
        memory=fit.memory,
        residency=fit.residency,
        kept_tokens=fit.kept_tokens,
        max_len=max_len,
        rows=rows_of(config, workloads),
        dtype=dtype,
        refused=refused,
        cells=cells,
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
