"""The trials of one step: an Optuna study, read and written through one small interface."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, ValidationError

from specbench.errors import DataError
from specbench.results.facts import first_error
from specbench.tune.objective import Scored
from specbench.tune.space import Setting, Space
from specbench.tune.steps import Result, Step
from specbench.tune.worker import Worker

if TYPE_CHECKING:
    import optuna

ENDED = "WORKER_ENDED"
DOUBLE = "DOUBLE"
_NAMELESS_S, _POLL_S = 5.0, 0.02
MOST_DEATHS = 2
"""A setting during which workers died this often is left failed."""


class _Given(BaseSampler):
    """Hands the next trial the setting that was decided for it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        return self.values[param_name]


@dataclass(frozen=True)
class TrialRow:
    """A trial as the table and the plots show it; None is unknown."""

    step: int
    trial: int
    setting: Setting
    status: str
    value: float | None
    noise: float | None
    acceptance_length: float | None
    throughput: float | None
    tpot_ms: float | None
    passes: int | None
    seconds: float | None
    reason: str | None


class _Holder(BaseModel):
    """The worker of a trial, as `Worker.describe` says it."""

    host: str
    pid: int
    started: int | None


class _Facts(BaseModel):
    """What is stored with a trial."""

    worker: _Holder | None = None
    beat: float | None = None
    status: str | None = None
    reason: str | None = None
    merit: float | None = None
    noise: float | None = None
    acceptance_length: float | None = None
    output_throughput: float | None = None
    mean_tpot_ms: float | None = None
    passes: int | None = None
    seconds: float | None = None
    histograms: tuple[tuple[int, ...], ...] | None = None


class Ledger:
    """The trials of one step.

    Parameters
    ----------
    study : optuna.Study
    step : Step
    space : Space
    """

    def __init__(self, study: "optuna.Study", step: Step, space: Space) -> None:
        self.study = study
        self.step = step
        self._budget = space.budget or "budget"
        self._distributions: dict[str, FloatDistribution | IntDistribution] = {}
        if space.ratios:
            low, high = float(space.ratios[0]), float(space.ratios[-1])
            self._distributions[self._budget] = FloatDistribution(low, high, log=True)
        if space.gammas:
            self._distributions["gamma"] = IntDistribution(0, space.gammas[-1])
        self._sampler = _Given()
        study.sampler = self._sampler

    def results(self) -> list[Result]:
        """What ended: trials with a value, and those that failed by their own doing."""
        found = []
        deaths: dict[Any, int] = {}
        for trial in self._trials():
            setting = self._setting(trial)
            if trial.state is TrialState.COMPLETE:
                facts = self._facts(trial)
                if facts.histograms is None or facts.merit is None:
                    raise DataError(f"{self._name(trial)} has a value, but no figures")
                found.append(Result(setting, facts.merit, facts.noise, facts.histograms))
            elif trial.state is TrialState.FAIL and trial.user_attrs.get("status") != DOUBLE:
                if trial.user_attrs.get("status") == ENDED:
                    deaths[setting.key] = deaths.get(setting.key, 0) + 1
                    if deaths[setting.key] < MOST_DEATHS:
                        continue
                found.append(Result(setting, None))
        return found

    def running(self) -> set[Any]:
        """Keys of the settings that some worker is measuring."""
        return {self._setting(t).key for t in self._trials() if t.state is TrialState.RUNNING}

    def rows(self) -> list[TrialRow]:
        """Every trial that has a setting."""
        return [self._row(trial) for trial in self._trials()]

    def seconds(self) -> float:
        """Time spent on trials that ended."""
        return sum(row.seconds or 0.0 for row in self.rows())

    def begin(self, setting: Setting, worker: Worker) -> "optuna.Trial | None":
        """Start a trial of `setting`; None where another worker was faster."""
        self._sampler.values = {self._budget: setting.ratio, "gamma": setting.gamma}
        trial = self.study.ask()
        # first of all: what has a setting is waited for as long as its worker lives
        trial.set_user_attr("worker", worker.describe())
        self.beat(trial)
        for name, kind in self._distributions.items():
            if isinstance(kind, FloatDistribution):
                trial.suggest_float(name, kind.low, kind.high, log=kind.log)
            else:
                trial.suggest_int(name, kind.low, kind.high)
        if any(
            other.state is TrialState.COMPLETE or other.number < trial.number
            for other in self._others(trial.number)
            if self._setting(other).key == setting.key
        ):
            self.fail(trial, DOUBLE, "another worker measures or measured the same setting", 0.0)
            return None
        return trial

    def beat(self, trial: "optuna.Trial") -> None:
        """Show that the trial's worker is alive."""
        trial.set_user_attr("beat", time.time())

    def complete(self, trial: "optuna.Trial", scored: Scored, value: float, seconds: float) -> None:
        """Record what a trial yielded; `value` is in the study's unit."""
        facts = {
            "merit": scored.merit,
            "noise": scored.noise,
            "acceptance_length": scored.samples[0].acceptance_length,
            "output_throughput": scored.throughput,
            "mean_tpot_ms": scored.tpot_ms,
            "passes": len(scored.samples),
            "histograms": scored.samples[0].histograms,
            "seconds": seconds,
        }
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        self.study.tell(trial, value)

    def fail(self, trial: "optuna.Trial", status: str, reason: str, seconds: float) -> None:
        """Record why a trial has no value."""
        for name, fact in (("status", status), ("reason", reason), ("seconds", seconds)):
            trial.set_user_attr(name, fact)
        self.study.tell(trial, state=TrialState.FAIL)

    def fail_stale(self, worker: Worker) -> int:
        """Fail what dead workers left running; how many trials that were."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        facts = [self._facts(trial).model_dump() for trial in running]
        stale = [
            trial
            for trial, known in zip(running, facts, strict=True)
            if not worker.sees_alive(known["worker"], known["beat"], trial.datetime_start)
        ]
        storage = self.study._storage
        for trial in stale:
            storage.set_trial_user_attr(trial._trial_id, "status", ENDED)
            storage.set_trial_user_attr(
                trial._trial_id, "reason", "its worker ended before it; measured again"
            )
            self.study.tell(trial.number, state=TrialState.FAIL)
        return len(stale)

    def _others(self, number: int) -> list[FrozenTrial]:
        """What runs or has ended with a value, once every earlier trial has its setting.

        A trial comes into being before its setting does. One that began earlier goes first, so that
        it must not be overlooked in between; a worker that died there is not waited for.
        """
        deadline = time.monotonic() + _NAMELESS_S
        while True:
            trials = self.study.get_trials(
                deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE)
            )
            others = [trial for trial in trials if trial.number != number]
            whole = [trial for trial in others if self._has_setting(trial)]
            nameless = any(t.number < number for t in others if not self._has_setting(t))
            if not nameless or time.monotonic() > deadline:
                return whole
            time.sleep(_POLL_S)

    def _has_setting(self, trial: FrozenTrial) -> bool:
        return len(trial.params) == len(self._distributions)

    def _trials(self) -> Sequence[FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if self._has_setting(trial)]

    def _name(self, trial: FrozenTrial) -> str:
        return f"trial {trial.number} of the study {self.study.study_name!r}"

    def _facts(self, trial: FrozenTrial) -> "_Facts":
        """What is stored with a trial.

        Raises
        ------
        DataError
            A fact of another type, as this program does not write it.
        """
        try:
            return _Facts.model_validate(trial.user_attrs)
        except ValidationError as error:
            raise DataError(f"{self._name(trial)} is damaged: {first_error(error)}") from error

    def _setting(self, trial: FrozenTrial) -> Setting:
        return Setting(trial.params.get(self._budget), trial.params.get("gamma"))

    def _row(self, trial: FrozenTrial) -> TrialRow:
        facts = self._facts(trial)
        ended = trial.state in (TrialState.COMPLETE, TrialState.FAIL)
        return TrialRow(
            step=self.step.number,
            trial=trial.number,
            setting=self._setting(trial),
            status=facts.status or ("FAILED" if ended else "RUNNING")
            if trial.state is not TrialState.COMPLETE
            else "PASSED",
            value=trial.value if trial.state is TrialState.COMPLETE else None,
            noise=facts.noise,
            acceptance_length=facts.acceptance_length,
            throughput=facts.output_throughput,
            tpot_ms=facts.mean_tpot_ms,
            passes=facts.passes,
            seconds=facts.seconds,
            reason=facts.reason,
        )
