"""Encoded text on disk, and rows of it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import DataError
from specbench.kernels.cross_entropy.reference import IGNORED
from specbench.parsing import parse_json

RECORD = "tokens.json"
PARTS = ("train", "evaluation")
_TYPES = ("uint16", "uint32")
Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class Corpus:
    """Tokens of all documents in a line, each followed by the separator.

    Attributes
    ----------
    train, evaluation : ndarray
        uint16 or uint32 `[n]`.
    separator : int
    record : dict
        Documents, tokens and checksums, for the records.
    """

    train: Tokens
    evaluation: Tokens
    separator: int
    record: dict[str, Any]

    def rows(self, length: int) -> int:
        """How many rows of `length` tokens there are to train on.

        Raises
        ------
        DataError
            There is not enough text for one.
        """
        count = (len(self.train) - 1) // length
        if count < 1:
            raise DataError(
                f"the data has {len(self.train):,} tokens to train on, which is no row of "
                f"{length:,}: give more --data, or set --short-len or --long-len lower"
            )
        return count


def cut(
    tokens: Tokens, separator: int, length: int, rows: Iterable[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of packed tokens, and what follows each token.

    Parameters
    ----------
    tokens : ndarray
        uint16 or uint32 `[n]`.
    separator : int
        What follows it is another document, which nothing can foresee: its label is ignored.
    length : int
    rows : iterable of int
        Row r begins at token ``r * length``.

    Returns
    -------
    tokens, labels : ndarray
        int64 `[B, length]`.
    """
    found = np.stack([tokens[r * length : (r + 1) * length + 1] for r in rows]).astype(np.int64)
    inputs, labels = found[:, :-1], found[:, 1:].copy()
    labels[inputs == separator] = IGNORED
    return inputs, labels


def read_corpus(folder: Path, identity: dict[str, Any], separator: int) -> Corpus | None:
    """The tokens that `folder` holds, if they are complete and those of `identity`."""
    if not (folder / RECORD).is_file():
        return None
    try:
        record: Any = parse_json((folder / RECORD).read_bytes())
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("identity") != identity:
        return None
    sums = record.get("sha256")
    if record.get("type") not in _TYPES or not isinstance(sums, dict) or {*sums} != {*PARTS}:
        return None
    for name in PARTS:
        file = folder / f"{name}.bin"
        if not file.is_file() or sha256_of(file) != sums[name]:
            return None
        if file.stat().st_size % np.dtype(record["type"]).itemsize:
            return None
    kind: Any = record["type"]
    lines = {
        name: np.memmap(folder / f"{name}.bin", dtype=kind, mode="r")
        if (folder / f"{name}.bin").stat().st_size
        else np.zeros(0, dtype=kind)
        for name in PARTS
    }
    record |= {"tokens": {name: len(line) for name, line in lines.items()}}
    return Corpus(lines["train"], lines["evaluation"], separator, record)


def sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
