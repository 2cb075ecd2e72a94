"""LongBench-v2: multiple-choice questions about long documents."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from specbench.datasets.base import Dataset, Item, PromptParts
from specbench.errors import DataError

LETTERS = "ABCD"
_ANSWER = re.compile(r"answer\s+is\W{0,6}([A-D])\b", re.IGNORECASE)
_BARE = re.compile(r"\W*([A-D])\W*")

HEAD = "Read the document below. A question about it follows.\n\n<document>\n"
COT = (
    "Write an essay of several paragraphs that works out the answer step by step: retell what the "
    "document says about this matter, compare it with the other parts, and judge every choice. The "
    'essay\'s last sentence must be "The correct answer is (X)", where X is the letter of your '
    "choice."
)
DIRECT = 'Reply in the form "The correct answer is (X)", where X is the letter of your choice.'


class LongBenchV2(Dataset):
    """Long documents with a question and four choices."""

    name = "longbench-v2"
    summary = "multiple-choice questions on documents of 8K to 2M words"
    hub_id = "THUDM/LongBench-v2"
    hub_split = "train"
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "question": ("question",),
        **{f"choice_{letter}": (f"choice_{letter}",) for letter in LETTERS},
        "answer": ("answer",),
        "context": ("context",),
    }
    id_fields = ("_id", "id")
    score_name = "choice"
    sample_fills_context = True

    def normalise(self, row: Mapping[str, Any], index: int) -> Item:
        """See `Dataset.normalise`; the answer must be one of the four letters."""
        item = super().normalise(row, index)
        answer = item.fields["answer"].strip().upper()
        if len(answer) != 1 or answer not in LETTERS:
            raise DataError(f"field 'answer' is {answer[:20]!r}, not one of A, B, C, D")
        item.fields["answer"] = answer
        return item

    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The document is the body; question, choices and instruction follow it."""
        fields = item.fields
        choices = "\n".join(f"({x}) {fields[f'choice_{x}'].strip()}" for x in LETTERS)
        tail = (
            f"\n</document>\n\nQuestion: {fields['question'].strip()}\n\nChoices:\n{choices}\n\n"
            f"{COT if cot else DIRECT}"
        )
        return PromptParts(HEAD, fields["context"].strip(), tail)

    def reference(self, item: Item) -> str:
        """The letter of the right choice."""
        return str(item.fields["answer"])

    def score(self, item: Item, text: str) -> float:
        """1 where the last choice that the text states is the right one, else 0."""
        stated = _ANSWER.findall(text)
        bare = _BARE.fullmatch(text)
        chosen = stated[-1].upper() if stated else bare.group(1) if bare else None
        return float(chosen == item.fields["answer"])
