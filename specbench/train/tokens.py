"""Text to rows of tokens: encoded once, packed, what evaluates kept apart from what trains."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import DataError
from specbench.files import disk_errors, write_atomically
from specbench.train.loss import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# one document in so many is kept for evaluation, chosen by its own text
_HELD_OUT = 100
# enough for every core to have some of them
_BATCH_CHARACTERS = 2**25
TOKENS = "tokens.json"
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


def encode(
    train: Iterable[str],
    evaluation: Iterable[str] | None,
    tokenizer: "PreTrainedTokenizerBase",
    separator: int,
    vocab_size: int,
    folder: Path,
    identity: dict[str, Any],
    encoded: Callable[[int], None] = lambda tokens: None,
) -> Corpus:
    """Encode documents into files of `folder`, or take what an earlier part left there.

    Parameters
    ----------
    train : iterable of str
        A document that occurs twice is taken once.
    evaluation : iterable of str, optional
        Its documents are left out of `train`. Without it one document of `train` in a hundred is
        held out, and where that leaves none, the end of the last one.
    tokenizer : PreTrainedTokenizerBase
    separator, vocab_size : int
    folder : Path
    identity : dict
        What the text and the tokenizer are; tokens of another identity are encoded anew.
    encoded : callable
        Told the tokens of each batch of documents.

    Raises
    ------
    DataError
        No text, or a token beyond the vocabulary.
    SpecbenchError
        The disk is full or refuses.
    """
    kind_of_token = np.uint16 if vocab_size <= 2**16 else np.uint32
    present = _present(folder, identity, separator)
    if present is not None:
        return present
    folder.mkdir(parents=True, exist_ok=True)
    known: set[bytes] = set()
    # in this order: what evaluates is known before what trains is read
    parts = (("evaluation", evaluation or ()), ("train", train))
    counts: dict[str, int] = {}
    with disk_errors(folder), _Writers(folder) as files:
        for name, texts in parts:
            for batch in _batches(_new(texts, known)):
                plain = [text for text, _ in batch]
                lines = tokenizer(plain, add_special_tokens=False, verbose=False)["input_ids"]
                total = 0
                for (_, mark), line in zip(batch, lines, strict=True):
                    if line and max(line) >= vocab_size:
                        raise DataError(
                            f"the tokenizer gives the token {max(line)}, but the model has "
                            f"{vocab_size:,}"
                        )
                    held = evaluation is None and int.from_bytes(mark[:4]) % _HELD_OUT == 0
                    kind = "evaluation" if held else name
                    files.append(kind, np.array([*line, separator], dtype=kind_of_token))
                    counts[kind] = counts.get(kind, 0) + 1
                    total += len(line) + 1
                encoded(total)
    sizes = _hold_out_the_end(folder, kind_of_token) if not counts.get("evaluation") else {}
    if not counts.get("train"):
        raise DataError("the data has no text to train on: no file or row that is not empty")
    record = {
        "identity": identity,
        "type": kind_of_token.__name__,
        "documents": counts,
        "sha256": {name: _sha256(folder / f"{name}.bin") for name in ("train", "evaluation")},
        **sizes,
    }
    write_atomically(folder / TOKENS, json.dumps(record, indent=2).encode())
    found = _present(folder, identity, separator)
    assert found is not None
    return found


class _Writers:
    """The token files, open for appending, one a kind."""

    def __init__(self, folder: Path) -> None:
        self.files = {name: (folder / f"{name}.bin").open("wb") for name in ("train", "evaluation")}

    def append(self, kind: str, tokens: NDArray[Any]) -> None:
        """Write one document."""
        self.files[kind].write(tokens.tobytes())

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()


def _new(texts: Iterable[str], known: set[bytes]) -> Iterator[tuple[str, bytes]]:
    """Documents that did not occur before, and a mark of each."""
    for text in texts:
        # a lone surrogate, which JSON can hold, is no text that a tokenizer takes
        content = text.encode("utf-8", errors="replace")
        mark = hashlib.blake2b(content, digest_size=16).digest()
        if content.strip() and mark not in known:
            known.add(mark)
            yield content.decode("utf-8"), mark


def _batches(texts: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for item in texts:
        batch.append(item)
        size += len(item[0])
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hold_out_the_end(folder: Path, kind: type[np.integer[Any]]) -> dict[str, int]:
    """Move the last tenth of the only tokens there are to evaluation."""
    file = folder / "train.bin"
    tokens = np.fromfile(file, dtype=kind)
    kept = len(tokens) - len(tokens) // 10
    with disk_errors(file):
        tokens[kept:].tofile(folder / "evaluation.bin")
        tokens[:kept].tofile(file)
    return {"held_out_of_the_end": len(tokens) - kept}


def _present(folder: Path, identity: dict[str, Any], separator: int) -> Corpus | None:
    """The tokens that `folder` holds, if they are complete and those of `identity`."""
    if not (folder / TOKENS).is_file():
        return None
    try:
        record = json.loads((folder / TOKENS).read_text(encoding="utf-8"))
    except ValueError:
        return None
    if record.get("identity") != identity:
        return None
    for name, expected in record["sha256"].items():
        file = folder / f"{name}.bin"
        if not file.is_file() or _sha256(file) != expected:
            return None
    lines = {
        name: np.memmap(folder / f"{name}.bin", dtype=record["type"], mode="r")
        if (folder / f"{name}.bin").stat().st_size
        else np.zeros(0, dtype=record["type"])
        for name in ("train", "evaluation")
    }
    record |= {"tokens": {name: len(line) for name, line in lines.items()}}
    return Corpus(lines["train"], lines["evaluation"], separator, record)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
