"""Reports on studies in a database: workers that start at once, and a reader beside them."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.storages._rdb import models

from specbench.tune.sample import Sample
from specbench.tune.space import Setting
from specbench.tune.storage import open_storage, open_study
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
