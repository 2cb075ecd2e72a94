"""A journal file for several processes that may be killed at any moment."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileSymlinkLock

from specbench.errors import DataError, UsageError
from specbench.parsing import is_plain, shown

PATIENCE_S = 60.0
"""Seconds that a process waits for the journal before it says that it is locked."""
_STALE_S = 5
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "op_code": int,
    "worker_id": str,
    "study_name": str,
    "directions": list,
    "study_id": int,
    "trial_id": int,
    "user_attr": dict,
    "system_attr": dict,
    "state": int,
    "values": (list, type(None)),
    "param_name": str,
    "param_value_internal": (int, float),
    "distribution": str,
}


class LockedJournal(BaseJournalBackend):
    """Optuna's journal file behind a lock that the kernel drops when its holder dies.

    Optuna's own lock is taken as well, since its dashboard writes under it; under the kernel's lock
    only a killed process can have left it behind, so that it is soon taken over.

    Parameters
    ----------
    path : Path
        Created where it is missing; what a killed process wrote of a last line is removed.

    Raises
    ------
    UsageError
        The file is no journal.
    DataError
        It cannot be read or written, or another process holds it.
    """

    def __init__(self, path: Path) -> None:
        # absolute, since Optuna's lock is a link to this name
        self.path = path.resolve()
        try:
            _refuse_foreign(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                _mend(self.path)
        except OSError as error:
            raise DataError(f"cannot open the journal {path}: {error.strerror}") from error
        name = str(self.path)
        self._lock = JournalFileSymlinkLock(name, grace_period=_STALE_S)
        self._file = JournalFileBackend(name, self._lock)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """See BaseJournalBackend."""
        for entry in self._file.read_logs(log_number_from):
            odd = _odd_field(entry)
            if odd is not None:
                raise DataError(f"the journal {self.path} is damaged: an entry's {odd}")
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See BaseJournalBackend.

        What another process that was killed meanwhile wrote of a line is removed first.

        Raises
        ------
        DataError
            The disk is full or refuses; the journal is as it was.
        """
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with self._locked():
            self._lock.acquire()
            try:
                _mend(self.path)
                _append(self.path, lines.encode())
            except OSError as error:
                raise DataError(
                    f"cannot write to the journal {self.path}: {error.strerror}; what it holds is "
                    "unharmed, and --resume continues"
                ) from error
            finally:
                self._lock.release()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE_S
        with open(f"{self.path}.flock", "ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise DataError(
                            f"the journal {self.path} has been locked by another process for "
                            f"{PATIENCE_S:.0f} s; end that process, or take another --storage"
                        ) from None
                    time.sleep(0.01)
            yield


def _odd_field(entry: Any) -> str | None:
    """What of an entry is not of the type that Optuna writes; None where all is."""
    if not isinstance(entry, dict) or "op_code" not in entry:
        return "op_code is missing"
    for name, kind in _FIELDS.items():
        if name in entry and not is_plain(entry[name], kind):
            return f"{name} cannot be {shown(entry[name])}"
    return None


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that was never a journal, before anything is made beside it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        first = file.readline()
    whole = first.endswith(b"\n")
    if not (_is_entry(first) if whole else first.startswith(b'{"op_code"'[: len(first)])):
        raise UsageError(f"{path} is no Optuna journal; give another file with --storage")


def _mend(path: Path) -> None:
    """Remove a last line that a killed process left unfinished."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())


def _append(path: Path, lines: bytes) -> None:
    """Write `lines` whole or not at all, and wait until they are on disk."""
    with path.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            if file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(start)
            raise


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and "op_code" in entry
