"""Text to tokens: encoded once, packed, what evaluates kept apart from what trains."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import DataError
from specbench.files import disk_errors, write_atomically
from specbench.train.corpus import PARTS, RECORD, Corpus, read_corpus, sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# one document in so many is kept for evaluation, chosen by its own text
_HELD_OUT = 100
# enough for every core to have some of them
_BATCH_CHARACTERS = 2**25


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
    present = read_corpus(folder, identity, separator)
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
        "sha256": {name: sha256_of(folder / f"{name}.bin") for name in PARTS},
        **sizes,
    }
    write_atomically(folder / RECORD, json.dumps(record, indent=2).encode())
    found = read_corpus(folder, identity, separator)
    assert found is not None
    return found


class _Writers:
    """The token files, open for appending, one a kind."""

    def __init__(self, folder: Path) -> None:
        self.files = {name: (folder / f"{name}.bin").open("wb") for name in PARTS}

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
