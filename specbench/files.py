"""Files that are replaced as a whole, or not at all."""

import os
from pathlib import Path

from specbench.errors import SpecbenchError


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
            f"cannot write {file.name} ({len(content) / 2**20:.1f} MiB) in {file.parent}: "
            f"{error.strerror}; {kept}"
        ) from error
