"""CodeElo: programming problems of contests, judged online."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from specbench.datasets.base import Dataset, Item, PromptParts, field_names
from specbench.datasets.plain_text import html_to_text
from specbench.errors import DataError
from specbench.parsing import shown

HEAD = (
    "Solve the following programming problem. The program reads from standard input and writes to "
    "standard output. Think about the algorithm and its running time first, then give the whole "
    "program in one code block.\n\n"
)
_LAYOUT = re.compile(r"</?(?:br|div|pre)\b[^<>]*>", re.IGNORECASE)
_OPTIONAL = (("interaction", "Interaction"), ("note", "Note"))


class CodeElo(Dataset):
    """Contest problems; their judge is online, so answers are not scored here."""

    name = "codeelo"
    summary = "387 contest programming problems; short prompts, long reasoning"
    hub_id = "Qwen/CodeElo"
    hub_split = "test"
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "title": ("title",),
        "description": ("description",),
        "input": ("input",),
        "output": ("output",),
    }
    id_fields = ("problem_id", "id")
    default_new_tokens = 4096

    def normalise(self, row: Mapping[str, Any], index: int) -> Item:
        """See `Dataset.normalise`; statements become plain text, limits and notes may be absent.

        Interactive problems have no input and output of their own; they need ``interaction``.
        """
        row = dict(row)
        if isinstance(row.get("interaction"), str) and row["interaction"].strip():
            names = [name for name in ("input", "output") if not row.get(name)]
            row |= dict.fromkeys(names, "See the interaction below.")
        item = super().normalise(row, index)
        fields = {name: html_to_text(value) for name, value in item.fields.items()}
        for name, _ in _OPTIONAL:
            value = row.get(name)
            fields[name] = html_to_text(value) if isinstance(value, str) else ""
        return Item(
            item.id,
            {
                **fields,
                "time_limit_ms": _number(row, "time_limit_ms"),
                "memory_limit_mb": _number(row, "memory_limit_mb"),
                "examples": _examples(row),
            },
        )

    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The whole statement; nothing of it may be cut."""
        fields = item.fields
        blocks = [f"# {fields['title']}"]
        limits = []
        if fields["time_limit_ms"] is not None:
            limits.append(f"Time limit: {fields['time_limit_ms'] / 1000:g} s")
        if fields["memory_limit_mb"] is not None:
            limits.append(f"Memory limit: {fields['memory_limit_mb']:g} MB")
        if limits:
            blocks.append("\n".join(limits))
        blocks += [
            fields["description"],
            f"## Input\n\n{fields['input']}",
            f"## Output\n\n{fields['output']}",
        ]
        interaction, note = ((title, fields[name]) for name, title in _OPTIONAL)
        if interaction[1]:
            blocks.append(f"## {interaction[0]}\n\n{interaction[1]}")
        for number, (given, expected) in enumerate(fields["examples"], start=1):
            blocks.append(
                f"## Example {number}\n\nInput:\n```\n{given}\n```\n\nOutput:\n```\n{expected}\n```"
            )
        if note[1]:
            blocks.append(f"## {note[0]}\n\n{note[1]}")
        return PromptParts(head=HEAD + "\n\n".join(blocks))


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"field {name!r} is {shown(value)}, not a number") from error
    if not math.isfinite(number):
        raise DataError(f"field {name!r} is {shown(value)}, not a number")
    return number


def _examples(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if "examples" not in row:
        raise DataError(f"no field 'examples'; the fields present are: {field_names(row)}")
    examples = row["examples"]
    if examples is not None and not isinstance(examples, Sequence):
        raise DataError(f"field 'examples' must be a list, not {type(examples).__name__}")
    pairs = []
    for number, example in enumerate(examples or ()):
        if isinstance(example, Mapping):
            example = [example.get("input"), example.get("output")]
        match example:
            case [str(given), str(expected)]:
                pairs.append((_example_text(given), _example_text(expected)))
            case _:
                raise DataError(f"example {number} must be a pair of texts, input and output")
    return tuple(pairs)


def _example_text(text: str) -> str:
    # An example is data and may itself look like tags; only layout markup gives HTML away.
    return html_to_text(text) if _LAYOUT.search(text) else text.strip()
