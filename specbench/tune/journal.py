"""A journal file for several processes that may be killed at any moment."""

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

PATIENCE_S = 60.0
"""Seconds that a process waits for the journal before it says that it is locked."""
_STALE_S = 5


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
        self._file = JournalFileBackend(name, JournalFileSymlinkLock(name, grace_period=_STALE_S))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """See BaseJournalBackend."""
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See BaseJournalBackend."""
        with self._locked():
            self._file.append_logs(logs)

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
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and "op_code" in entry
