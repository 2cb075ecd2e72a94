"""Runs the trials of one step until the step is done or the budget is spent."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specbench.bench.redact import redact_message
from specbench.bench.status import classify
from specbench.config import Goal
from specbench.errors import DataError, SpecbenchError
from specbench.parsing import is_plain, shown
from specbench.results.facts import MOST_DRAFTS
from specbench.tune.ledger import DOUBLE, ENDED, Ledger
from specbench.tune.objective import Best, Scored, score
from specbench.tune.progress import StepProgress
from specbench.tune.sample import LossyError, Measure, Sample
from specbench.tune.space import Setting
from specbench.tune.steps import PlateauStep, Result, Step, best_so_far
from specbench.tune.worker import Worker

if TYPE_CHECKING:
    import optuna

Direction = Literal["minimize", "maximize"]
CHOSEN = "chosen"
_POLL_S = 0.5


class NothingMeasuredError(SpecbenchError):
    """A step has nothing to choose from."""


@dataclass(frozen=True)
class Rules:
    """How trials are made.

    Attributes
    ----------
    goal : str
    repeats : int
        Pairs of a trial in steps 2 and 3.
    budget_s : float or None
        Seconds of trials, all steps and all starts together.
    exhaustive : bool
        Measure the rest of the grids after the three steps.
    """

    goal: Goal
    repeats: int
    budget_s: float | None
    exhaustive: bool = False

    def passes(self, step: Step) -> int:
        """Of a trial, at most."""
        return 1 if step.number == 1 else 2 * self.repeats

    @property
    def unit(self) -> str:
        """Of the objective's values."""
        return "tok/s" if self.goal == "throughput" else "ms/token"

    def value(self, step: Step, merit: float) -> float:
        """A merit in the unit of the step's study."""
        return 1 / merit if self.goal == "tpot" and step.number > 1 else merit

    def direction(self, step: Step) -> Direction:
        """Of the step's study."""
        return "minimize" if self.goal == "tpot" and step.number > 1 else "maximize"

    def show(self, step: Step, merit: float) -> str:
        """A merit for people."""
        value = self.value(step, merit)
        return f"AL {value:.2f}" if step.number == 1 else self.told(value)

    def told(self, value: float) -> str:
        """Throughput or time a token, with its unit."""
        return f"{value:,.0f} {self.unit}" if value >= 1000 else f"{value:.4g} {self.unit}"


def run_step(
    ledger: Ledger,
    prior: Sequence[Result],
    measure: Measure,
    rules: Rules,
    worker: Worker,
    say: Callable[[str], None],
    progress: StepProgress,
    spent: float = 0.0,
) -> Setting:
    """Measure what the step wants and return its choice, which is kept with the study.

    What another worker is measuring is waited for, unless there is something else to measure.

    Parameters
    ----------
    ledger : Ledger
    prior : sequence of Result
        Of earlier steps, where this one may look them up.
    measure : Measure
    rules : Rules
    worker : Worker
    say : callable
        Takes a line of progress a trial.
    progress : StepProgress
    spent : float
        Seconds of earlier steps' trials.

    Raises
    ------
    NothingMeasuredError
        Every trial failed; the message gives the last reason.
    """
    step = ledger.step
    stored = ledger.study.user_attrs.get(CHOSEN)
    if stored is not None:
        return _stored_choice(stored, ledger.study.study_name)
    ended = "search"
    while True:
        busy = ledger.running()
        wanted = step.wanted([*prior, *ledger.results()])
        if wanted and _is_spent(ledger, rules, spent):
            ended, wanted = "budget", []
        if not wanted and not busy:
            break
        free = [setting for setting in wanted if setting.key not in busy]
        trial = ledger.begin(free[0], worker) if free else None
        if trial is None:
            time.sleep(_POLL_S)
            ledger.fail_stale(worker)
            continue
        # what another worker ended between the decision and this trial may have settled it
        if free[0] not in step.wanted([*prior, *ledger.results()]):
            ledger.fail(trial, DOUBLE, "another worker measured enough", 0.0)
            continue
        best = best_so_far([*prior, *ledger.results()])
        progress.trial(step.space.show(free[0]), rules.passes(step))
        _run_trial(ledger, trial, free[0], best, progress.counted(measure), rules)
        say(_line(ledger, prior, free[0], rules))
        best = best_so_far([*prior, *ledger.results()])
        progress.ended(
            None
            if best is None
            else f"{step.space.show(best.setting)}: {rules.show(step, best.merit)}"
        )
    chosen = step.chosen([*prior, *ledger.results()])
    if chosen is None:
        reasons = [row.reason for row in ledger.rows() if row.reason]
        raise NothingMeasuredError(
            f"step {step.number}, {step.title}: every trial failed"
            + (f", the last one with: {reasons[-1]}" if reasons else "")
        )
    ledger.study.set_user_attr(
        CHOSEN, {"ratio": chosen.ratio, "gamma": chosen.gamma, "after": ended}
    )
    return chosen


def _stored_choice(stored: object, study: str) -> Setting:
    """What an earlier start chose, as `run_step` stores it."""
    fields = stored if isinstance(stored, dict) else {}
    ratio, gamma = fields.get("ratio"), fields.get("gamma")
    whole = gamma is None or (is_plain(gamma, int) and 0 <= gamma <= MOST_DRAFTS)
    share = ratio is None or (is_plain(ratio, (int, float)) and ratio > 0)
    if not fields or not whole or not share:
        raise DataError(f"the study {study!r} is damaged: it chose {shown(stored)}")
    return Setting(ratio, gamma)


def _run_trial(
    ledger: Ledger,
    trial: "optuna.Trial",
    setting: Setting,
    best: Best | None,
    measure: Measure,
    rules: Rules,
) -> None:
    """Measure one setting and record its value or the reason for having none."""
    step = ledger.step
    began = time.perf_counter()

    def watched(setting: Setting, repeat: int) -> Sample:
        ledger.beat(trial)
        return measure(setting, repeat)

    try:
        if isinstance(step, PlateauStep):
            scored = _acceptance(watched(setting, 0))
        else:
            scored = score(setting, best, watched, rules.repeats, rules.goal)
        if not (math.isfinite(scored.merit) and scored.merit > 0):
            raise SpecbenchError(f"the value is {scored.merit}")
    except KeyboardInterrupt:
        ledger.fail(trial, ENDED, "interrupted; measured again", time.perf_counter() - began)
        raise
    except LossyError as error:
        ledger.fail(trial, "LOSSY", redact_message(str(error)), time.perf_counter() - began)
    except Exception as error:  # a trial's boundary: the study goes on
        status, message = classify(error)
        ledger.fail(trial, status.value, redact_message(message), time.perf_counter() - began)
    else:
        value = rules.value(step, scored.merit)
        ledger.complete(trial, scored, value, time.perf_counter() - began)


def _acceptance(sample: Sample) -> Scored:
    length = sample.acceptance_length
    if length is None:
        raise SpecbenchError("no step on record: raise --max-new-tokens")
    return Scored(length, None, (sample,))


def _is_spent(ledger: Ledger, rules: Rules, spent: float) -> bool:
    """Whether the budget is used up; never before a step has something to choose from."""
    if rules.budget_s is None or spent + ledger.seconds() < rules.budget_s:
        return False
    # in step 2 one setting that drafts, beside none: else "no drafts" would win unopposed
    return len(ledger.results()) >= {1: 1, 2: 2}.get(ledger.step.number, 0)


def _line(ledger: Ledger, prior: Sequence[Result], setting: Setting, rules: Rules) -> str:
    step = ledger.step
    row = [row for row in ledger.rows() if row.setting.key == setting.key][-1]
    if row.value is None:
        told = f"{row.status}: {row.reason}"
    elif step.number == 1:
        told = f"AL {row.value:.2f}"
    else:
        told = f"{rules.told(row.value)}, AL {row.acceptance_length or 1:.2f}"
    best = best_so_far([*prior, *ledger.results()])
    show = step.space.show
    so_far = f"; best {show(best.setting)}: {rules.show(step, best.merit)}" if best else ""
    return f"step {step.number}  {show(setting)}: {told}{so_far}"
