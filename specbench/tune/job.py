"""What a tuning decides before its storage is opened."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.arms import Arm
from specbench.bench.defaults import CPU_PROMPTS, CUDA_PROMPTS, resolve_machine
from specbench.bench.environment import gpus
from specbench.bench.loads import plan_loads
from specbench.bench.plan import Plan, make_plan
from specbench.bench.redact import redact
from specbench.bench.run import say_choices
from specbench.bench.workload import Workload
from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.tune.final import final_arms
from specbench.tune.space import Space, without_doubles
from specbench.tune.split import split_workload
from specbench.tune.trials import Rules

if TYPE_CHECKING:
    from rich.console import Console

CPU_NEW_TOKENS = 24
FEW_PROMPTS = 8
"""Tuning prompts at least; a small batch takes them one after another."""


@dataclass(frozen=True)
class Job:
    """What is decided before the storage is opened.

    Attributes
    ----------
    plan : Plan
        Of the tuning prompts.
    held_out : Workload
    space : Space
    rules : Rules
    identity : dict
        What two processes must have in common to write one study, as JSON.
    """

    plan: Plan
    held_out: Workload
    space: Space
    rules: Rules
    identity: dict[str, Any]

    @property
    def context(self) -> int:
        """Mean length of the tuning prompts, in tokens."""
        prompts = self.plan.workloads[0].requests
        return round(sum(len(request.token_ids) for request in prompts) / len(prompts))


def prepare_loads(parts: dict[str, TuneConfig], space: Space, console: "Console") -> dict[str, Job]:
    """A job for each load, all of them on one model; what cannot run is refused.

    Raises
    ------
    UsageError
        Two loads have the same batch and prompts.
    """

    def of(name: str, part: TuneConfig) -> Job:
        if name:
            console.print(f"load {name}", style="dim", markup=False, highlight=False)
        return prepare(part, space, console)

    return plan_loads(parts, of, lambda job: job.plan)


def prepare(config: TuneConfig, space: Space, console: "Console") -> Job:
    """Choose what the user left open and refuse what cannot run; nothing is written."""
    from specbench.engine.loader import describe_model

    run = config.run_config()
    if len(run.dataset) != 1 or "all" in run.dataset:
        raise UsageError(f"tune takes one --dataset at a time, not {', '.join(run.dataset)}")
    machine, _ = resolve_machine(run)
    if machine.device != "cuda":
        few = CPU_PROMPTS
    else:
        # as many as may decode together, where the batch is not chosen yet
        few = CUDA_PROMPTS if run.batch_size is None else FEW_PROMPTS
    tuning = run.num_prompts or max(few, run.batch_size or 1)
    held_out = config.held_out or tuning
    run = run.model_copy(update={"num_prompts": tuning + held_out, "resume": False})
    short = machine.device == "cpu" and run.max_new_tokens is None
    if short:
        run = run.model_copy(update={"max_new_tokens": CPU_NEW_TOKENS})
    # two settings are bound at once
    arms = [
        *final_arms(machine, space, space.largest),
        Arm("best", space.build(space.largest, machine)),
    ]
    plan = make_plan(run, arms)
    named = config.num_prompts is not None or config.held_out is not None
    first, second, note = split_workload(plan.workloads[0], tuning, held_out, named)
    if short:
        plan.choices.append(f"max-new-tokens {CPU_NEW_TOKENS}: a short tuning on a CPU")
    rows = min(plan.rows, len(first.requests), len(second.requests))
    if run.batch_size is not None and rows < run.batch_size:
        raise UsageError(
            f"--batch-size {run.batch_size} is not filled by the {len(first.requests)} prompts to "
            f"tune on and the {len(second.requests)} held out: raise --num-prompts and --held-out, "
            "or lower it"
        )
    plan.choices.append(
        note or f"{first.info.name}: {tuning} prompts to tune on, {held_out} others held out"
    )
    resolved = plan.config.model_copy(
        update={"batch_size": rows, "num_prompts": len(first.requests)}
    )
    plan = replace(plan, config=resolved, rows=rows, workloads=[first])
    space, doubles = without_doubles(space, resolved, first.max_len)
    plan.choices.extend([doubles] if doubles else [])
    say_choices(plan, console)
    rules = Rules(
        config.objective,
        config.repeats,
        None if config.budget_minutes is None else 60 * config.budget_minutes,
        config.exhaustive,
    )
    skipped = {"output", "resume", "source", "model", "threads", "timeout"}
    identity = {
        "space": space.describe(),
        "objective": config.objective,
        "config": redact(resolved.model_dump(mode="json", exclude=skipped)),
        "model": describe_model(
            str(resolved.model), resolved.model_revision, resolved.rope_scaling, resolved.seed
        ),
        "prompts": {
            "tuning": first.info.token_ids_sha256,
            "held_out": second.info.token_ids_sha256,
        },
        "gpu": gpus()[0]["name"] if resolved.device == "cuda" else None,
    }
    return Job(plan, second, space, rules, json.loads(json.dumps(identity)))


def largest(jobs: Iterable[Job]) -> Job:
    """The job whose requests are the longest, which decides what the model must reach."""
    return max(jobs, key=lambda job: job.plan.max_len)


def study_name(config: TuneConfig) -> str:
    """The name given, or one made of method, model and dataset."""
    if config.study is not None:
        return config.study
    model = resolve_machine(config.run_config())[0].model
    names = (config.method[0], str(model).removeprefix("dummy:"), config.dataset[0])
    return "-".join(Path(name).name for name in names)
