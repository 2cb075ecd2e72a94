"""`specbench tune`: from a configuration to a choice, its proof and an exit status."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.backends import EngineHost
from specbench.bench.defaults import resolve_machine
from specbench.bench.environment import describe
from specbench.bench.plan import Plan, make_plan
from specbench.bench.redact import redact
from specbench.bench.run import say_choices
from specbench.bench.workload import Workload
from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.results.report import write_file
from specbench.results.store import RunStore
from specbench.tune.curves import draw_curves
from specbench.tune.final import compare, final_arms, run_final
from specbench.tune.ledger import Ledger, TrialRow
from specbench.tune.measure import EngineMeasure
from specbench.tune.report import print_choice, write_comparison, write_trials, write_tuned
from specbench.tune.sample import Measure
from specbench.tune.space import Setting, Space, build_space, without_doubles
from specbench.tune.split import split_workload
from specbench.tune.steps import (
    GammaStep,
    PlateauStep,
    RefineStep,
    Result,
    Step,
    best_with_drafts,
)
from specbench.tune.storage import JOURNAL, check_study, open_storage, open_study, storage_errors
from specbench.tune.trials import Rules, run_step
from specbench.tune.worker import Worker

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from rich.console import Console

INTERRUPTED = 130


def run_tuning(config: TuneConfig, *, console: "Console", argv: Sequence[str]) -> int:
    """Tune one method on one dataset, and measure the choice on prompts held out.

    Parameters
    ----------
    config : TuneConfig
        As given; what is None is chosen here.
    console : Console
        For choices, progress and the results.
    argv : sequence of str
        The command line, for the records.

    Returns
    -------
    int
        0 passed, 1 the tuned method was not lossless, 3 an arm of the final run failed, 130
        interrupted.

    Raises
    ------
    SpecbenchError
        What cannot run, a storage that cannot be used or holds another tuning, a step of which
        every trial failed.
    """
    import torch

    began = time.perf_counter()
    space = build_space(config)
    folder = _output_folder(config, space)
    if config.threads:
        torch.set_num_threads(config.threads)
    job = _prepare(config, space, console)
    storage, where = open_storage(config.storage, folder)
    with storage_errors(where):
        name = config.study or _study_name(job)
        check_study(storage, name, job.identity, config.resume, where)
        host = EngineHost(job.plan)
        measure = EngineMeasure(
            host.engine, job.space, job.plan.config, job.plan.workloads[0].requests
        )
        tuning = Tuning(job, storage, name, measure, console)
        try:
            tuning.run()
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            tuning.write(folder)
        measure.close()
    chosen = tuning.chosen[max(tuning.chosen)]
    write_tuned(folder, job.plan.config, job.space, chosen)
    arms = final_arms(job.plan.config, job.space, chosen)
    status = run_final(job.plan, host, job.held_out, arms, folder, console=console, argv=argv)
    comparisons = compare(folder)
    write_comparison(folder, comparisons)
    print_choice(console, tuning.chosen, tuning.titles, comparisons)
    seconds = time.perf_counter() - began
    console.print(f"{folder} after {seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)
    return status


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


class Tuning:
    """The three steps over their studies.

    Attributes
    ----------
    chosen : dict
        The choice of each step that ended, by its number.
    titles : dict
        What each step is, for people.
    """

    def __init__(
        self, job: Job, storage: "BaseStorage", name: str, measure: Measure, console: "Console"
    ) -> None:
        self.job = job
        self.chosen: dict[int, Setting] = {}
        self.titles: dict[int, str] = {}
        self._storage = storage
        self._name = name
        self._measure = measure
        self._console = console
        self._worker = Worker()
        self._ledgers: list[Ledger] = []

    def run(self) -> None:
        """Run every step that the method has; each begins where the one before ended."""
        space = self.job.space
        start = space.start
        results: list[Result] = []
        if space.ratios:
            start = self._run(PlateauStep(space), [])
        if space.gammas:
            self._run(GammaStep(space, start.ratio), [])
            results = self._ledgers[-1].results()
            drafting = best_with_drafts(results)
            if drafting is None:
                return
            start = drafting
        if space.ratios:
            self._run(RefineStep(space, start), results)

    def rows(self) -> list[TrialRow]:
        """Every trial so far."""
        return [row for ledger in self._ledgers for row in ledger.rows()]

    def write(self, folder: Path) -> None:
        """Write ``trials.csv``, and the plots of the steps that ended."""
        space, rules = self.job.space, self.job.rules
        rows = self.rows()
        write_trials(folder, rows, self.chosen, space, rules)
        if self.chosen:
            caption = self._caption()
            pngs = draw_curves(rows, self.chosen, self.titles, space, rules, caption)
            for name, png in pngs.items():
                write_file(folder / f"{name}.png", png)

    def _run(self, step: Step, prior: Sequence[Result]) -> Setting:
        rules = self.job.rules
        study = open_study(
            self._storage, f"{self._name}/{step.name}", rules.direction(step), self.job.identity
        )
        ledger = Ledger(study, step, self.job.space)
        spent = sum(earlier.seconds() for earlier in self._ledgers)
        self._ledgers.append(ledger)
        self.titles[step.number] = step.title
        stale = ledger.fail_stale(self._worker)
        if stale:
            self._say(f"step {step.number}  {stale} trials of workers that ended: failed")
        self._say(f"step {step.number}  {step.title}")
        chosen = run_step(ledger, prior, self._measure, rules, self._worker, self._say, spent)
        self._say(f"step {step.number}  choice: {chosen}")
        self.chosen[step.number] = chosen
        return chosen

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def _caption(self) -> str:
        plan = self.job.plan
        info = plan.workloads[0].info
        model = Path(str(plan.config.model)).name
        return (
            f"{model} · {plan.config.dtype} · {plan.config.device} · batch {plan.rows} · "
            f"{len(info.prompts)} prompts of {info.name}, at most {info.max_new_tokens} new tokens"
        )


def _prepare(config: TuneConfig, space: Space, console: "Console") -> Job:
    """Choose what the user left open and refuse what cannot run; nothing is written."""
    from specbench.engine.loader import describe_model

    run = config.run_config()
    if len(run.dataset) != 1 or "all" in run.dataset:
        raise UsageError(f"tune takes one --dataset at a time, not {', '.join(run.dataset)}")
    default = resolve_machine(run.model_copy(update={"num_prompts": None}))[0].num_prompts or 1
    tuning = run.num_prompts or max(default, run.batch_size or 1)
    held_out = config.held_out or tuning
    run = run.model_copy(update={"num_prompts": tuning + held_out, "resume": False})
    plan = make_plan(run, final_arms(run, space, space.largest))
    named = config.num_prompts is not None or config.held_out is not None
    first, second, note = split_workload(plan.workloads[0], tuning, held_out, named)
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
    skipped = {"output", "resume", "source", "model", "threads"}
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
        "gpus": describe([]).get("gpus") if resolved.device == "cuda" else None,
    }
    return Job(plan, second, space, rules, json.loads(json.dumps(identity)))


def _output_folder(config: TuneConfig, space: Space) -> Path:
    """Where the results go; refuses what holds something else before a model is loaded."""
    folder = config.output
    if folder is None:
        if config.resume:
            raise UsageError("--resume needs --output, the folder of the tuning to continue")
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return Path("runs") / f"{stamp}-tune-{space.method.name}"
    journal = Path(config.storage) if config.storage else folder / JOURNAL
    if config.resume:
        if "://" not in str(config.storage) and not journal.is_file():
            raise UsageError(f"nothing to resume: there is no {journal}; leave out --resume")
    elif (folder / JOURNAL).is_file():
        raise UsageError(
            f"{folder} already holds a tuning: --resume continues it, or give another --output"
        )
    else:
        RunStore.check_free(folder)
    return folder


def _study_name(job: Job) -> str:
    config = job.plan.config
    model = Path(str(config.model).removeprefix("dummy:")).name
    return f"{job.space.method.name}-{model}-{job.held_out.info.name}"
