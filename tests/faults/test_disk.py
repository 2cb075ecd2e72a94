"""A disk that is full, and a folder that nothing can be written to."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.errors import DataError, UsageError
from specbench.results.folder import refuse_unwritable
from specbench.results.reading import read_folder
from specbench.tune.journal import LockedJournal
from tests.support.mounts import mounted, remount
from tests.support.prepared import Fault
from tests.support.torture import Torture, read


def error(printed: str) -> str:
    """The one line that a user is told, behind which nothing follows."""
    assert "Traceback" not in printed
    last = printed.strip().splitlines()[-1]
    assert last.startswith("specbench: error: ")
    return last


def test_full_in_the_middle_of_a_record(torture: Torture) -> None:
    """Files may have 1,000 bytes for run.json, then 8,000 for records, then 60,000 for plots."""
    out = torture.folder / "limited"
    ended = torture.disturb(out, fault=Fault(file_bytes=1_000))
    assert ended.status == 3
    assert "run.json: File too large" in error(ended.printed)
    assert not (out / "run.json").exists()
    ended = torture.disturb(out, fault=Fault(file_bytes=8_000))
    assert ended.status == 3
    assert "requests.jsonl: " in error(ended.printed)
    assert "--resume continues" in error(ended.printed)
    whole = read(out / "requests.jsonl")
    assert 4_000 < len(whole) <= 8_000, "the line that did not fit is gone, those before are not"
    assert whole.endswith(b"\n")
    ended = torture.disturb(out, fault=Fault(file_bytes=60_000))
    assert ended.status == 3
    assert ".png: File too large" in error(ended.printed)
    assert "'specbench report DIR --output ELSEWHERE'" in error(ended.printed)
    assert not list(out.glob("*.part"))
    torture.finish(out)


def test_a_disk_that_is_full_and_then_read_only(torture: Torture, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=24k") as disk:
        out = disk / "out"
        ended = torture.disturb(out)
        assert ended.status == 3
        assert "No space left on device" in error(ended.printed)
        assert read_folder(out).requests
        remount(disk, "size=8m")
        torture.finish(out)
        remount(disk, "ro")
        ended = torture.call(out)
        assert ended.status == 2
        assert f"{out} is on a read-only file system" in error(ended.printed)
        ended = torture.interpreter.run("report", out, cwd=torture.inputs)
        assert ended.status == 3
        assert "Read-only file system; the records are unharmed" in error(ended.printed)
        elsewhere = ("--output", tmp_path / "elsewhere")
        ended = torture.interpreter.run("report", out, *elsewhere, cwd=torture.inputs)
        assert ended.status == 0, ended.printed


def test_a_read_only_folder_is_refused_before_the_model_is_looked_at(
    torture: Torture, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "size=8m,ro") as disk:
        out = disk / "new" / "out"
        ended = torture.call(out, "--model", tmp_path / "absent")
        assert ended.status == 2
        assert f"{disk} is on a read-only file system; give another --output" in ended.printed
        assert error(ended.printed) == ended.printed.strip()


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the system's answer is given here."""
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(UsageError, match=rf"{tmp_path} cannot be written to; give another"):
        refuse_unwritable(tmp_path / "runs" / "a")
    monkeypatch.undo()
    refuse_unwritable(tmp_path / "runs" / "a")
    assert not (tmp_path / "runs").exists()


@contextmanager
def limit(file_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_journal_keeps_whole_entries(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    journal = LockedJournal(file)
    journal.append_logs([{"op_code": 0, "n": 1}])
    before = file.read_bytes()
    with (
        limit(len(before) + 10),
        pytest.raises(DataError, match=r"study\.journal: No space left on device.*--resume"),
    ):
        journal.append_logs([{"op_code": 0, "n": 2}])
    assert file.read_bytes() == before
    journal.append_logs([{"op_code": 0, "n": 3}])
    assert [log["n"] for log in journal.read_logs(0)] == [1, 3]


def test_a_journal_outlives_a_worker_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    """The others go on: none of them opens the journal anew."""
    file = tmp_path / "study.journal"
    alive = LockedJournal(file)
    alive.append_logs([{"op_code": 0, "n": 1}])
    with file.open("ab") as torn:
        torn.write(b'{"op_code": 0, "n"')
    alive.append_logs([{"op_code": 0, "n": 2}])
    assert [log["n"] for log in alive.read_logs(0)] == [1, 2]
    assert [log["n"] for log in LockedJournal(file).read_logs(0)] == [1, 2]
