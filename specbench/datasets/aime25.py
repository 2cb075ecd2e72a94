"""AIME 2025: competition problems with an integer answer."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from specbench.datasets.base import Dataset, Item, PromptParts
from specbench.errors import DataError

_BOXED = re.compile(r"\\f?boxed\s*\{")
_INTEGER = re.compile(r"[+-]?\d+")
# The hub gives one answer in degrees: 336^\circ.
_FORMATTING = re.compile(r"\^\{?\\circ\}?|°|\\(?:text|mathrm|mathbf|left|right|[,;:!])|[\s{}$,]")

_MOST_DIGITS = 40
TAIL = "\n\nReason step by step, and put your final answer within \\boxed{}."


class AIME25(Dataset):
    """The thirty problems of AIME 2025, I and II."""

    name = "aime25"
    summary = "30 competition problems; short prompts, long reasoning, integer answers"
    hub_id = "opencompass/AIME2025"
    hub_configs = ("AIME2025-I", "AIME2025-II")
    hub_split = "test"
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "problem": ("question", "problem"),
        "answer": ("answer",),
    }
    default_new_tokens = 4096
    score_name = "boxed integer"

    def normalise(self, row: Mapping[str, Any], index: int) -> Item:
        """See `Dataset.normalise`; the answer must be an integer."""
        item = super().normalise(row, index)
        if _integer(item.fields["answer"]) is None:
            raise DataError(f"field 'answer' is {item.fields['answer'][:40]!r}, not an integer")
        return item

    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The problem and the instruction; nothing of it may be cut."""
        return PromptParts(head=item.fields["problem"].strip(), tail=TAIL)

    def reference(self, item: Item) -> str:
        """The integer, without leading zeros."""
        return str(_integer(item.fields["answer"]))

    def score(self, item: Item, text: str) -> float:
        """1 where the last boxed expression of the text is the right integer, else 0."""
        boxed = last_boxed(text)
        value = None if boxed is None else _integer(boxed)
        return float(value is not None and str(value) == self.reference(item))


def last_boxed(text: str) -> str | None:
    r"""What stands inside the last complete ``\boxed{...}``, or `None` without one."""
    for start in reversed([match.end() for match in _BOXED.finditer(text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end]
    return None


def _integer(text: str) -> int | None:
    bare = _FORMATTING.sub("", text).removesuffix(".0").removesuffix(".")
    return int(bare) if len(bare) <= _MOST_DIGITS and _INTEGER.fullmatch(bare) else None
