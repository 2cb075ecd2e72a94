"""Packing, and that no text that evaluates is trained on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.errors import DataError
from specbench.train.corpus import Corpus, cut
from specbench.train.tokens import encode

SEPARATOR = 0


class Letters:
    """A tokenizer of letters: a is 1."""

    calls = 0

    def __call__(self, texts: list[str], **options: object) -> dict[str, list[list[int]]]:
        self.calls += len(texts)
        return {"input_ids": [[ord(c) - 96 for c in text if c.isalpha()] for text in texts]}


def corpus(
    folder: Path,
    train: Iterable[str],
    evaluation: Iterable[str] | None = None,
    tokenizer: Any = None,
    vocab: int = 27,
    **identity: object,
) -> Corpus:
    return encode(train, evaluation, tokenizer or Letters(), SEPARATOR, vocab, folder, identity)


def test_documents_are_packed_with_a_separator_each(tmp_path: Path) -> None:
    found = corpus(tmp_path, ["abc", "d", "  ", "abc"], ["ee", "d"])
    assert found.train.tolist() == [1, 2, 3, 0], "d evaluates, and abc counts once"
    assert found.evaluation.tolist() == [5, 5, 0, 4, 0]
    assert found.record["documents"] == {"evaluation": 2, "train": 1}
    assert found.record["tokens"] == {"train": 4, "evaluation": 5}


def test_one_document_in_a_hundred_is_held_out(tmp_path: Path) -> None:
    texts = ["".join(chr(97 + int(d)) for d in f"{n:o}") for n in range(1000, 4000)]
    found = corpus(tmp_path, texts)
    counts = found.record["documents"]
    assert counts["train"] + counts["evaluation"] == 3000
    assert 10 < counts["evaluation"] < 60

    def split(tokens: np.ndarray[Any, Any]) -> set[str]:
        return set("".join(map(str, tokens.tolist())).split("0"))

    assert split(found.train) & split(found.evaluation) == {""}


def test_of_few_documents_the_end_is_held_out(tmp_path: Path) -> None:
    found = corpus(tmp_path, ["abcdefghijklmnopqrstuvwxyz" * 3 + "abcd"])
    assert len(found.train) == 75
    assert found.evaluation.tolist() == [24, 25, 26, 1, 2, 3, 4, 0]


def test_tokens_are_kept_for_the_next_part(tmp_path: Path) -> None:
    tokenizer = Letters()
    first = corpus(tmp_path, ["abc", "de"], ["f"], tokenizer, data="x")
    again = corpus(tmp_path, ["never read"], ["nor this"], tokenizer, data="x")
    assert tokenizer.calls == 3
    assert again.record == first.record
    assert again.train.tolist() == first.train.tolist()
    other = corpus(tmp_path, ["zz"], ["f"], tokenizer, data="y")
    assert other.train.tolist() == [26, 26, 0]


@pytest.mark.parametrize("damage", ["cut", "gone", "record"])
def test_damaged_tokens_are_encoded_anew(tmp_path: Path, damage: str) -> None:
    first = corpus(tmp_path, ["abc"], ["f"]).train.tolist()
    if damage == "cut":
        (tmp_path / "train.bin").write_bytes(b"\0\0\0\0")
    elif damage == "gone":
        (tmp_path / "train.bin").unlink()
    else:
        (tmp_path / "tokens.json").write_text("{")
    assert corpus(tmp_path, ["abc"], ["f"]).train.tolist() == first


@pytest.mark.parametrize("texts", [[], [" ", "\n"]])
def test_no_text_is_an_error(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to train on"):
        corpus(tmp_path, texts)


def test_rows_and_their_labels() -> None:
    tokens = np.array([1, 2, 0, 3, 4, 5, 6], dtype=np.uint32)
    inputs, labels = cut(tokens, SEPARATOR, 3, [1, 0])
    assert inputs.tolist() == [[3, 4, 5], [1, 2, 0]]
    assert labels.tolist() == [[4, 5, 6], [2, 0, -100]], "what begins after the end is no label"


def test_too_little_text_for_a_row() -> None:
    few = Corpus(np.arange(9, dtype=np.uint32), np.arange(2, dtype=np.uint32), 0, {})
    assert few.rows(8) == 1
    with pytest.raises(DataError, match="9 tokens to train on, which is no row of 9"):
        few.rows(9)


@pytest.mark.parametrize(("vocab", "size"), [(65536, 2), (65537, 4)])
def test_a_token_takes_as_many_bytes_as_the_vocabulary_needs(
    tmp_path: Path, vocab: int, size: int
) -> None:
    found = corpus(tmp_path, ["abc"], ["z"], vocab=vocab)
    assert found.train.tolist() == [1, 2, 3, 0]
    assert (tmp_path / "train.bin").stat().st_size == 4 * size


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gives the token 26, but the model has 26"):
        corpus(tmp_path, ["xyz"], ["a"], vocab=26)


def test_text_that_is_no_unicode(tmp_path: Path) -> None:
    assert corpus(tmp_path, ["a\ud800b"], ["c"]).train.tolist() == [1, 2, 0]
