"""What a tuning decides before its storage is opened."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.defaults import CPU_PROMPTS, CUDA_PROMPTS, resolve_machine
from specbench.bench.environment import gpus
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


def prepare(config: TuneConfig, space: Space, console: "Console") -> Job:
    """Choose what the user left open and refuse what cannot run; nothing is written."""
    from specbench.engine.loader import describe_model

    run = config.run_config()
    if len(run.dataset) != 1 or "all" in run.dataset:
        raise UsageError(f"tune takes one --dataset at a time, not {', '.join(run.dataset)}")
    machine, _ = resolve_machine(run)
    default = CUDA_PROMPTS if machine.device == "cuda" else CPU_PROMPTS
    tuning = run.num_prompts or max(default, run.batch_size or 1)
    held_out = config.held_out or tuning
    run = run.model_copy(update={"num_prompts": tuning + held_out, "resume": False})
    short = machine.device == "cpu" and run.max_new_tokens is None
    if short:
        run = run.model_copy(update={"max_new_tokens": CPU_NEW_TOKENS})
    plan = make_plan(run, final_arms(run, space, space.largest))
    named = config.num_prompts is not None or config.held_out is not None
    first, second, note = split_workload(plan.workloads[0], tuning, held_out, named)
    if short:
        plan.choices.append(f"max-new-tokens {CPU_NEW_TOKENS}: a short tuning on a CPU")
    rows = min(plan.rows, len(first.requests), len(second.requests))
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


def study_name(config: TuneConfig) -> str:
    """The name given, or one made of method, model and dataset."""
    if config.study is not None:
        return config.study
    model = resolve_machine(config.run_config())[0].model
    names = (config.method[0], str(model).removeprefix("dummy:"), config.dataset[0])
    return "-".join(Path(name).name for name in names)
