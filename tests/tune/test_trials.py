"""Trials that fail, workers that die, and several processes on one storage."""

import fcntl
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from specbench.errors import DataError, NumericalError, OutOfMemoryError, SpecbenchError, UsageError
from specbench.tune.journal import LockedJournal
from specbench.tune.ledger import ENDED, Ledger
from specbench.tune.objective import Scored
from specbench.tune.sample import LossyError, Sample
from specbench.tune.space import Setting
from specbench.tune.steps import GammaStep
from specbench.tune.storage import check_studies, open_storage, open_study, storage_errors
from specbench.tune.worker import SILENT_S, Worker
from tests.support.cost_model import CostModel, vegas_space
from tests.support.tuning import Tuned, tune

GRIDS: dict[str, Any] = {
    "ratios": (0.05, 0.1),
    "gammas": (0, 1, 2, 4),
    "sweep_ratios": True,
    "sweep_gammas": True,
}


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OutOfMemoryError("9 GiB are missing"), "OOM", "9 GiB are missing"),
        (NumericalError("request 'a', step 3: NaN"), "RUNTIME_ERROR", "step 3: NaN"),
        (LossyError("prompt 'a' differs at token 4"), "LOSSY", "differs at token 4"),
        (ZeroDivisionError("division by zero"), "RUNTIME_ERROR", "ZeroDivisionError"),
    ],
)
def test_a_failing_trial_keeps_its_reason_and_the_study_goes_on(
    error: Exception, status: str, reason: str
) -> None:
    machine = CostModel(1)

    def measure(setting: Setting, repeat: int) -> Sample:
        if setting.gamma == 2:
            raise error
        return machine(setting, repeat)

    tuned = tune(measure, vegas_space(**GRIDS))
    failed = [row for row in tuned.rows() if row.status != "PASSED"]
    assert {row.setting.gamma for row in failed} == {2}
    assert {row.status for row in failed} == {status}
    assert all(reason in (row.reason or "") for row in failed)
    assert tuned.choice.gamma != 2
    study = open_study(tuned.storage, "test/2-gamma", "maximize", {})
    (trial,) = study.get_trials(states=(optuna.trial.TrialState.FAIL,))
    assert reason in trial.user_attrs["reason"]


def test_a_value_that_is_no_number_fails() -> None:
    """optuna#2915."""
    machine = CostModel(1)

    def measure(setting: Setting, repeat: int) -> Sample:
        sample = machine(setting, repeat)
        return sample if setting.gamma != 1 else Sample(math.nan, math.nan, sample.histograms)

    rows = tune(measure, vegas_space(**GRIDS)).rows()
    assert [row.reason for row in rows if row.setting.gamma == 1] == ["the value is nan"]


def test_where_every_trial_fails_the_reason_is_told() -> None:
    def measure(setting: Setting, repeat: int) -> Sample:
        raise OutOfMemoryError("nothing fits")

    with pytest.raises(SpecbenchError, match=r"step 1.*every trial failed.*nothing fits"):
        tune(measure, vegas_space(**GRIDS))


def test_an_interrupted_trial_is_measured_again(tmp_path: Path) -> None:
    storage, _ = open_storage(None, tmp_path)
    machine = CostModel(1)

    def interrupted(setting: Setting, repeat: int) -> Sample:
        if setting.gamma == 4:
            raise KeyboardInterrupt
        return machine(setting, repeat)

    tuned = Tuned(interrupted, vegas_space(**GRIDS), storage)
    with pytest.raises(KeyboardInterrupt):
        tuned.run()
    last = tuned.rows()[-1]
    assert (last.status, last.setting.gamma) == (ENDED, 4)
    again = tune(machine, vegas_space(**GRIDS), storage)
    passed = {row.setting for row in again.rows() if row.status == "PASSED"}
    assert last.setting in passed


def test_a_trial_left_running_by_a_dead_worker_is_failed_and_repeated() -> None:
    space = vegas_space(**GRIDS)
    tuned = Tuned(CostModel(1), space)
    study = open_study(tuned.storage, "test/2-gamma", "maximize", {})
    ledger = Ledger(study, GammaStep(space, 0.05), space)
    dead, elsewhere, silent = Worker(), Worker(), Worker()
    dead.pid, dead.started = 2**22 + 1, 5
    elsewhere.host = silent.host = "another-machine"
    trials = [
        ledger.begin(Setting(0.05, g), w) for g, w in ((0, dead), (1, elsewhere), (2, silent))
    ]
    assert all(trials)
    trials[2].set_user_attr("beat", time.time() - SILENT_S - 1)  # type: ignore[union-attr]
    assert ledger.fail_stale(Worker()) == 2
    assert ledger.running() == {(0.05, 1)}
    assert ledger.results() == [], "they are measured again"
    rows = [row for row in ledger.rows() if row.status == ENDED]
    assert [row.setting.gamma for row in rows] == [0, 2]
    assert all("worker ended" in (row.reason or "") for row in rows)
    ledger.begin(Setting(0.05, 0), dead)
    ledger.fail_stale(Worker())
    assert [r.setting.gamma for r in ledger.results()] == [0], "two deaths are enough"


def test_what_another_worker_ended_meanwhile_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space, machine = vegas_space(**GRIDS), CostModel(1)
    begin = Ledger.begin

    def late(ledger: Ledger, setting: Setting, worker: Worker) -> Any:
        """Another worker is faster from the decision for a setting to the end of its trial."""
        monkeypatch.setattr(Ledger, "begin", begin)
        trial = begin(ledger, setting, worker)
        assert trial is not None
        sample = machine(setting, 0)
        ledger.complete(trial, Scored(2.0, 0.0, (sample,)), 2.0, 0.1)
        return begin(ledger, setting, worker)

    monkeypatch.setattr(Ledger, "begin", late)
    rows = tune(machine, space).rows()
    first = [row.status for row in rows if row.setting == rows[0].setting and row.step == 1]
    assert first == ["PASSED", "DOUBLE"]


def test_two_workers_do_not_measure_one_setting() -> None:
    space = vegas_space(**GRIDS)
    storage = optuna.storages.InMemoryStorage()
    first, second = (
        Ledger(open_study(storage, "s", "maximize", {}), GammaStep(space, 0.05), space)
        for _ in range(2)
    )
    assert first.begin(Setting(0.05, 2), Worker()) is not None
    assert second.begin(Setting(0.05, 2), Worker()) is None
    assert second.results() == []


WIDE: dict[str, Any] = {"sweep_ratios": True, "sweep_gammas": True}


def _work(folder: Path, number: int, together: Any) -> None:
    together.wait(120)
    machine = CostModel(7)

    def slow(setting: Setting, repeat: int) -> Sample:
        time.sleep(0.03)
        return machine(setting, repeat)

    storage, _ = open_storage(None, folder)
    tuned = tune(slow, vegas_space(**WIDE), storage)
    (folder / f"choice{number}").write_text(str(tuned.choice))


def test_two_processes_and_a_reader_share_a_journal(tmp_path: Path) -> None:
    """optuna#4994, optuna-dashboard#545."""
    context = multiprocessing.get_context("fork")  # which spares two imports of everything
    together = context.Barrier(2)
    workers = [context.Process(target=_work, args=(tmp_path, n, together)) for n in (1, 2)]
    for process in workers:
        process.start()
    seen = 0
    while any(process.is_alive() for process in workers):
        if (tmp_path / "study.journal").is_file():
            # a plain Optuna reader, as the dashboard is
            backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
            studies = optuna.storages.JournalStorage(backend).get_all_studies()
            seen = max(seen, len(studies))
        time.sleep(0.05)
    assert [process.exitcode for process in workers] == [0, 0]
    assert seen >= 1
    assert (tmp_path / "choice1").read_text() == (tmp_path / "choice2").read_text()
    storage, _ = open_storage(None, tmp_path)
    tuned = tune(CostModel(7), vegas_space(**WIDE), storage)
    keys = [r.setting.key for r in tuned.rows() if r.status == "PASSED" and r.step > 1]
    assert len(keys) == len(set(keys))
    hosts = {
        trial.user_attrs["worker"]["pid"]
        for study in storage.get_all_studies()
        for trial in storage.get_all_trials(study._study_id)
    }
    assert len(hosts) == 2


def test_a_torn_last_line_is_removed_and_the_rest_is_kept(tmp_path: Path) -> None:
    storage, _ = open_storage(None, tmp_path)
    chosen = tune(CostModel(1), vegas_space(**GRIDS), storage).chosen
    journal = tmp_path / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:30])
    storage, _ = open_storage(None, tmp_path)
    assert journal.read_bytes() == whole
    assert tune(CostModel(2), vegas_space(**GRIDS), storage).chosen == chosen


@pytest.mark.parametrize("content", ["my notes", "my notes\n", '{"a": 1}\n', "[1, 2]\nmore"])
def test_a_file_that_is_no_journal_is_refused_untouched(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"notes\.txt is no Optuna journal"):
        open_storage(str(file), tmp_path)
    assert file.read_text() == content


def test_a_locked_journal_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.tune.journal.PATIENCE_S", 0.1)
    with open(tmp_path / "study.journal.flock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="has been locked by another process"):
            LockedJournal(tmp_path / "study.journal")


def test_a_locked_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """optuna#820."""
    monkeypatch.setitem(
        __import__("specbench.tune.storage").tune.storage._WAIT_S, "sqlite", {"timeout": 0.1}
    )
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage, where = open_storage(url, tmp_path)
    with sqlite3.connect(tmp_path / "study.db") as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match="locked"), storage_errors(where):
            open_study(storage, "a", "maximize", {})


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("nonsense://", UsageError, "no URL of a database"),
        ("postgresql+psycopg://me:secret@127.0.0.1:9/none", DataError, "cannot be used"),
        ("sqlite:////proc/none/study.db", DataError, "unable to open database file"),
    ],
)
def test_a_storage_that_cannot_be_reached(
    tmp_path: Path, url: str, kind: type[Exception], message: str
) -> None:
    if "psycopg" in url:
        pytest.importorskip("psycopg")
    with pytest.raises(kind, match=message) as raised:
        open_storage(url, tmp_path)
    assert "secret" not in str(raised.value)


def test_a_driver_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"not installed .*specbench\[postgresql\]") as raised:
        open_storage("postgresql+psycopg://me:secret@127.0.0.1:9/none", tmp_path)
    assert "secret" not in str(raised.value)


def test_another_tuning_of_the_same_name_is_refused(tmp_path: Path) -> None:
    storage, where = open_storage(None, tmp_path)
    identity = {"space": {"ratios": [0.1, 0.2]}, "model": "a"}
    check_studies(storage, "mine", {"": identity}, False, where)
    open_study(storage, "mine/1", "maximize", identity)
    before = (tmp_path / "study.journal").read_bytes()
    check_studies(storage, "mine", {"": identity}, True, where)
    check_studies(storage, "other", {"": identity}, False, where)
    with pytest.raises(UsageError, match="--resume continues it"):
        check_studies(storage, "mine", {"": identity}, False, where)
    changed = identity | {"space": {"ratios": [0.1]}}
    with pytest.raises(UsageError, match=r"space.ratios: \[0.1, 0.2\] there, \[0.1\] now"):
        check_studies(storage, "mine", {"": changed}, True, where)
    with pytest.raises(UsageError, match="nothing to resume"):
        check_studies(storage, "other", {"": identity}, True, where)
    optuna.create_study(storage=storage, study_name="foreign/x")
    with pytest.raises(UsageError, match="not of specbench tune"):
        check_studies(storage, "foreign", {"": identity}, True, where)
    assert (tmp_path / "study.journal").read_bytes().startswith(before)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a server of its own; skips where PostgreSQL or its driver is missing."""
    psycopg = pytest.importorskip("psycopg")
    programs = [shutil.which(name) for name in ("initdb", "postgres")]
    if None in programs:
        pytest.skip("PostgreSQL's initdb and postgres are not on the PATH")
    as_user: list[str] = []
    data = Path(tempfile.mkdtemp(prefix="specbench-pg-"))
    if os.geteuid() == 0:  # which the server refuses
        as_user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
        os.chown(data, 65534, 65534)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": data}
    initialise = [*as_user, programs[0], "-D", data / "db", "-U", "tuner", "-A", "trust", "-N"]
    if subprocess.run(initialise, check=False, **quiet).returncode:
        shutil.rmtree(data)
        pytest.skip("initdb does not run here")
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", str(data)]
    server = subprocess.Popen([*as_user, programs[1], "-D", data / "db", *options], **quiet)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(f"host=127.0.0.1 port={port} user=tuner dbname=postgres").close()
                break
            except psycopg.OperationalError:  # it listens before it is ready
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.1)
        yield f"postgresql+psycopg://tuner@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # without waiting for open connections
        server.wait(60)
        shutil.rmtree(data, ignore_errors=True)


def test_a_tuning_in_postgresql(postgres: str, tmp_path: Path) -> None:
    storage, where = open_storage(postgres, tmp_path)
    with storage_errors(where):
        first = tune(CostModel(3), vegas_space(**GRIDS), storage)
    again, _ = open_storage(postgres, tmp_path)
    machine = CostModel(4)
    assert tune(machine, vegas_space(**GRIDS), again).chosen == first.chosen
    assert machine.passes == []
