"""Files that are replaced as a whole or not at all, and what a full disk is called."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import SpecbenchError


@contextmanager
def disk_errors(file: Path) -> Iterator[None]:
    """Turn what the disk refuses while `file` is written into a message.

    Raises
    ------
    SpecbenchError
        With the system's reason, such as "No space left on device".
    """
    try:
        yield
    except OSError as error:
        raise SpecbenchError(f"cannot write {file}: {error.strerror}") from error


def write_atomically(file: Path, content: bytes) -> None:
    """Replace `file` by `content`, or leave it as it is.

    Raises
    ------
    SpecbenchError
        The disk is full or refuses.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        kept = "the one before is intact" if file.is_file() else "there was none before"
        raise SpecbenchError(
            f"cannot write {file} ({len(content) / 2**20:.1f} MiB): {error.strerror}; {kept}"
        ) from error
