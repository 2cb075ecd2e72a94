"""Text that comes from data, made safe for what it is written into."""

import re
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff]+")
_MARKDOWN = str.maketrans(
    {character: f"\\{character}" for character in "\\`*[]|"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?%?")


def one_line(text: str) -> str:
    """`text` without control characters, which would break a table's row, an SVG or a terminal."""
    return _CONTROL.sub(lambda found: " " if found[0].isspace() else "\ufffd", text)


def markdown(text: str) -> str:
    """`text` as Markdown that shows it, on one line and within a table's cell."""
    return one_line(text).translate(_MARKDOWN)


def spreadsheet(value: Any) -> Any:
    """A text that a spreadsheet would compute is told from a formula by a quote; others stay."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
