"""Who may write to an output folder: an empty one, one process at a time."""

import fcntl
import os
from pathlib import Path

from specbench.errors import DataError, UsageError
from specbench.results.reading import RUN
from specbench.results.records import RunRecord

_LOCK = ".lock"
_DRAFT = "run.json.part"


def refuse_content(folder: Path) -> None:
    """Refuse a folder that holds anything but what an interrupted start leaves.

    Raises
    ------
    UsageError
        The message says whether it holds a run, which --resume would continue.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if names - {_LOCK, _DRAFT}:
        what = "a run" if RUN in names else "other files"
        raise UsageError(
            f"the output folder {folder} already holds {what}; "
            "continue a run with --resume, or give another --output"
        )


def refuse_run(folder: Path) -> None:
    """Refuse a folder whose reports are those of a run of its own.

    Raises
    ------
    UsageError
        It holds a run.
    """
    if (folder / RUN).is_file():
        raise UsageError(f"{folder} holds a run with reports of its own; give another --output")


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that nothing can be written to, or that cannot be made, touching nothing.

    Raises
    ------
    UsageError
        Names the folder whose permissions or file system refuse.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        read_only = os.statvfs(there).f_flag & os.ST_RDONLY
        why = "is on a read-only file system" if read_only else "cannot be written to"
        raise UsageError(f"the output folder {folder}: {there} {why}; give another --output")


def acquire(folder: Path) -> int:
    """Make the folder if need be and lock it against other writers.

    Returns
    -------
    int
        A file descriptor. The lock lasts until it is closed or the process ends, however it ends.

    Raises
    ------
    UsageError
        Another process holds the lock, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"cannot write to the output folder {folder}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UsageError(
            f"the output folder {folder} is in use by another process; "
            "wait for it, or give another --output"
        ) from error
    return descriptor


def write_run(folder: Path, run: RunRecord) -> None:
    """Write `run.json`, whole or not at all.

    Raises
    ------
    DataError
        The disk is full or refuses; a start in this folder can be repeated.
    """
    draft = folder / _DRAFT
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(run.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / RUN)
    except OSError as error:
        raise DataError(f"cannot write {folder / RUN}: {error.strerror}") from error
