"""The built-in sample: rows in every dataset's schema, written by a seeded generator of ours.

Nothing is copied from a benchmark or a text: reports come from a grammar, problems and their
answers are computed. A seed and a length give the same rows on every machine.
"""

import random
from collections.abc import Callable
from typing import Any

from specbench.datasets.sample import maths, programs, reports
from specbench.errors import UsageError

# Documents are written longer than asked for, so that cutting them fills the context exactly.
_SURPLUS = 1.3
_CHARACTERS_PER_TOKEN = 4.5

Row = dict[str, Any]
Measure = Callable[[str], float]

_WRITERS: dict[str, Callable[[random.Random, int, float, Measure], Row]] = {
    "longbench-v2": reports.question_row,
    "govreport": reports.summary_row,
    "aime25": maths.row,
    "codeelo": programs.row,
}


def sample_items(
    name: str, num: int, seed: int, target_tokens: int | None = None, tokenizer: Any = None
) -> list[Row]:
    """Rows of the sample, in the schema of the hub's dataset.

    Parameters
    ----------
    name : str
        A dataset with a sample: longbench-v2, govreport, aime25 or codeelo.
    num : int
        How many rows; the first ones are the same for every `num`.
    seed : int
    target_tokens : int, optional
        Length of a row's text, reached and somewhat exceeded; by default its natural length.
    tokenizer : transformers tokenizer, optional
        What counts the tokens; without one a token is 4.5 characters.

    Raises
    ------
    UsageError
        The dataset has no sample.
    """
    if name not in _WRITERS:
        raise UsageError(
            f"dataset {name} has no built-in sample; those that have one: {', '.join(_WRITERS)}"
        )
    write = _WRITERS[name]
    length = 0.0 if target_tokens is None else target_tokens * _SURPLUS

    def measure(text: str) -> float:
        if tokenizer is None:
            return len(text) / _CHARACTERS_PER_TOKEN
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    # A string seeds the same way on every platform and Python version.
    return [
        write(random.Random(f"specbench {name} {seed} {index}"), index, length, measure)
        for index in range(num)
    ]
