"""Reports on studies in a database: workers that start at once, and a reader beside them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages._rdb import models

from specbench.tune import ledger
from specbench.tune.ledger import Ledger
from specbench.tune.objective import Scored
from specbench.tune.sample import Sample
from specbench.tune.space import Setting
from specbench.tune.steps import GammaStep
from specbench.tune.storage import open_storage, open_study
from specbench.tune.worker import Worker
from tests.support.cost_model import CostModel, vegas_space
from tests.support.tuning import Tuned, tune

GRIDS: dict[str, Any] = {
    "ratios": (0.05, 0.1),
    "gammas": (0, 2),
    "sweep_ratios": True,
    "sweep_gammas": True,
}


def test_tables_that_another_worker_makes_meanwhile_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """optuna#820, #4994: of two workers started at once on a new database one was turned away.

    The other makes the tables between this one's look and its own attempt: "table studies already
    exists".
    """
    url = f"sqlite:///{tmp_path / 'study.db'}"
    real = models.BaseModel.metadata.create_all
    calls: list[int] = []

    def create_all(engine: Any) -> None:
        calls.append(1)
        real(engine)
        if len(calls) == 1:
            real(engine, checkfirst=False)

    monkeypatch.setattr(models.BaseModel.metadata, "create_all", create_all)
    storage, _ = open_storage(url, tmp_path)
    assert len(calls) == 2
    open_study(storage, "a", "maximize", {})
    assert [study.study_name for study in storage.get_all_studies()] == ["a"]


def test_two_workers_and_a_reader_share_a_database(tmp_path: Path) -> None:
    """optuna#820, #4994, optuna-dashboard#545, KVTuner#1: locked, or killed by its dashboard."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    together = threading.Barrier(3, timeout=60)
    tuned: dict[int, Tuned] = {}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        machine = CostModel(7)

        def slow(setting: Setting, repeat: int) -> Sample:
            time.sleep(0.01)
            return machine(setting, repeat)

        try:
            together.wait()
            tuned[number] = tune(slow, vegas_space(**GRIDS), open_storage(url, tmp_path)[0])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    together.wait()
    seen = 0
    reader, _ = open_storage(url, tmp_path)
    while any(worker.is_alive() for worker in workers):
        studies = reader.get_all_studies()
        seen = max(seen, sum(len(reader.get_all_trials(s._study_id)) for s in studies))
        time.sleep(0.05)
    assert not failures
    assert seen > 0
    assert tuned[1].choice == tuned[2].choice
    measured = [r.setting.key for r in tuned[1].rows() if r.status == "PASSED" and r.step > 1]
    assert len(measured) == len(set(measured)), "optuna#2021: a setting was measured twice"


def begun() -> tuple[Ledger, Ledger]:
    """One study as two workers see it."""
    space, storage = vegas_space(**GRIDS), optuna.storages.InMemoryStorage()
    step = GammaStep(space, 0.05)
    first, second = (
        Ledger(open_study(storage, "s", "maximize", {}), step, space) for _ in range(2)
    )
    return first, second


def test_a_setting_that_was_measured_meanwhile_is_not_measured_again() -> None:
    """optuna#2021: between a worker's look and its start the other one began, and was done."""
    first, second = begun()
    trial = first.begin(Setting(0.05, 2), Worker())
    assert trial is not None
    sample = CostModel(7)(Setting(0.05, 2), 0)
    first.complete(trial, Scored(1.0, None, (sample,)), 1.0, 0.1)
    assert second.begin(Setting(0.05, 2), Worker()) is None
    assert second.begin(Setting(0.05, 0), Worker()) is not None
    assert len(second.results()) == 1


def test_a_trial_without_its_setting_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """optuna#2021: a trial is there before its parameters are; both workers thought to be first."""
    first, second = begun()
    early = first.study.ask()

    def give_the_setting(_seconds: float) -> None:
        first._sampler.values = {"kept_ratio": 0.05, "gamma": 2}
        for name, distribution in first._distributions.items():
            early._suggest(name, distribution)

    monkeypatch.setattr(ledger.time, "sleep", give_the_setting)
    assert second.begin(Setting(0.05, 2), Worker()) is None


def test_a_worker_that_died_before_its_setting_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "_NAMELESS_S", 0.05)
    first, second = begun()
    first.study.ask()
    assert second.begin(Setting(0.05, 2), Worker()) is not None


@pytest.mark.parametrize("written", range(4))
def test_a_worker_that_died_while_it_began_holds_nobody_up(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting without its worker's name was waited for as one of another machine: 15 minutes."""
    first, second = begun()
    storage, left = first.study._storage, [written]

    def until_it_dies(write: Callable[..., None]) -> Callable[..., None]:
        def maybe(*args: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            write(*args)

        return maybe

    dead = Worker()
    dead.pid, dead.started = 2**22 + 1, 5
    with monkeypatch.context() as dying:
        for name in ("set_trial_param", "set_trial_user_attr"):
            dying.setattr(storage, name, until_it_dies(getattr(storage, name)))
        with pytest.raises(KeyboardInterrupt):
            first.begin(Setting(0.05, 2), dead)
    second.fail_stale(Worker())
    assert not second.running()
    assert second.results() == []
