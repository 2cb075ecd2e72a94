"""The three steps of a tuning over their studies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.results.report import write_file
from specbench.tune.curves import draw_curves
from specbench.tune.job import Job
from specbench.tune.ledger import Ledger, TrialRow
from specbench.tune.report import write_trials
from specbench.tune.sample import Measure
from specbench.tune.space import Setting
from specbench.tune.steps import (
    GammaStep,
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
        The choice of each step that ended, by its number.
    titles : dict
        What each step is, for people.
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
        self._storage = storage
        self._name = name
        self._measure = measure
        self._console = console
        self._prefix = prefix
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
            plots = draw_curves(rows, self.chosen, self.titles, space, rules, caption)
            for name, content in plots.items():
                write_file(folder / name, content)

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
        self._console.print(f"{self._prefix}{line}", markup=False, highlight=False, soft_wrap=True)

    def _caption(self) -> str:
        plan = self.job.plan
        info = plan.workloads[0].info
        model = Path(str(plan.config.model)).name
        return (
            f"{model} · {plan.config.dtype} · {plan.config.device} · batch {plan.rows} · "
            f"{len(info.prompts)} prompts of {info.name}, at most {info.max_new_tokens} new tokens"
        )
