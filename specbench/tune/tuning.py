"""The three steps of a tuning over their studies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.results.report import write_file
from specbench.tune.curves import draw_curves
from specbench.tune.job import Job
from specbench.tune.ledger import Ledger, TrialRow
from specbench.tune.progress import StepProgress
from specbench.tune.report import trial_rows, write_trials
from specbench.tune.sample import Measure
from specbench.tune.space import Setting
from specbench.tune.steps import (
    STEPS,
    GammaStep,
    GridStep,
    PlateauStep,
    RefineStep,
    Result,
    Step,
    best_with_drafts,
)
from specbench.tune.storage import open_study
from specbench.tune.trials import run_step
from specbench.tune.worker import Worker

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from rich.console import Console


class Tuning:
    """The three steps over their studies.

    Attributes
    ----------
    chosen : dict
        The choice of each of the three steps that ended, by its number.
    titles : dict
        What each step is, for people.
    grid_best : Setting or None
        The best of the whole grids, where they were measured as a check.
    plots : dict of str to bytes
        The image files that `write` wrote last, by name.
    """

    def __init__(
        self,
        job: Job,
        storage: "BaseStorage",
        name: str,
        measure: Measure,
        console: "Console",
        prefix: str = "",
    ) -> None:
        self.job = job
        self.chosen: dict[int, Setting] = {}
        self.titles: dict[int, str] = {}
        self.grid_best: Setting | None = None
        self.plots: dict[str, bytes] = {}
        self._storage = storage
        self._name = name
        self._measure = measure
        self._console = console
        self._progress = StepProgress(console)
        self._prefix = prefix
        self._worker = Worker()
        self._ledgers: list[Ledger] = []

    def run(self) -> None:
        """Run every step that the method has; each begins where the one before ended."""
        space = self.job.space
        results: list[Result] = []
        with self._progress:
            start: Setting | None = space.start
            if space.ratios:
                start = self._choose(PlateauStep(space), [])
            if space.gammas:
                self._choose(GammaStep(space, start.ratio if start else None), [])
                results = self._ledgers[-1].results()
                start = best_with_drafts(results)
            if space.ratios and start is not None:
                self._choose(RefineStep(space, start), results)
                results = [*results, *self._ledgers[-1].results()]
            if self.job.rules.exhaustive:
                self.grid_best = self._run(GridStep(space), results)

    @property
    def choice(self) -> Setting:
        """That of the last of the three steps."""
        return self.chosen[max(self.chosen)]

    def rows(self) -> list[TrialRow]:
        """Every trial so far."""
        return [row for ledger in self._ledgers for row in ledger.rows()]

    def write(self, folder: Path) -> None:
        """Write ``trials.csv``, and the plots of the steps that ended."""
        space, rules = self.job.space, self.job.rules
        write_trials(folder, self.table(), space)
        if self.chosen:
            self.plots = draw_curves(
                self.rows(), self.chosen, self.titles, space, rules, self._caption()
            )
            for name, content in self.plots.items():
                write_file(folder / name, content)

    def table(self) -> list[dict[str, Any]]:
        """Every trial so far, as ``trials.csv`` has it."""
        return trial_rows(self.rows(), self.chosen, self.job.space, self.job.rules)

    def _choose(self, step: Step, prior: Sequence[Result]) -> Setting:
        self.chosen[step.number] = chosen = self._run(step, prior)
        return chosen

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
        self._progress.step(step.number, step.title, step.most, len(ledger.results()))
        chosen = run_step(
            ledger, prior, self._measure, rules, self._worker, self._say, self._progress, spent
        )
        what = "choice" if step.number in STEPS else "best of the grids"
        self._say(f"step {step.number}  {what}: {self.job.space.show(chosen)}")
        return chosen

    def _say(self, line: str) -> None:
        self._console.print(f"{self._prefix}{line}", markup=False, highlight=False, soft_wrap=True)

    def _caption(self) -> str:
        plan = self.job.plan
        info = plan.workloads[0].info
        model = Path(str(plan.config.model)).name
        return (
            f"{model} · {plan.config.dtype} · {plan.config.device} · batch {plan.rows} · "
            f"{len(info.prompts)} prompts of {info.name}, at most {info.max_new_tokens} new tokens"
        )
