"""JSON from outside: read strictly, whatever the file holds."""

import json
import re
from typing import Any, NoReturn

DEPTH = 64
_SHOWN = 120
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_DIGITS = 400
_LONG = re.compile(rf"[0-9]{{{_DIGITS + 1}}}")
_OPENING = re.compile(r"[\[{]")


def parse_json(content: str | bytes, *, finite: bool = True) -> Any:
    """The value that a JSON text stands for.

    Parameters
    ----------
    content : str or bytes
        Bytes must be UTF-8.
    finite : bool
        Refuse NaN and Infinity, which Python writes and JSON does not have.

    Raises
    ------
    ValueError
        No JSON, more than `DEPTH` lists and objects within each other, a key that stands twice in
        an object, an integer of thousands of digits, half of a surrogate pair (which no file could
        take), or no UTF-8.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer if _LONG.search(text) else None,
            parse_constant=_refuse_constant if finite else None,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{error.msg} at {line}column {error.colno}") from error
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} deep") from None
    if len(_OPENING.findall(text, 0, 1 << 16)) > DEPTH or len(text) > 1 << 16:
        _check_depth(value)
    if _HALF_PAIR.search(text):
        check_text(value)
    return value


def shown(value: object) -> str:
    """`value` as messages show it: its beginning, where it is long."""
    if isinstance(value, list | tuple | dict) and value:
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[: _SHOWN + 1] if isinstance(value, str) else _safe(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_plain(value: object, kind: type | tuple[type, ...]) -> bool:
    """Whether `value` is of `kind`; true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _safe(value: object) -> object:
    return "a very long integer" if isinstance(value, int) and abs(value) >> 400 else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(double)} stands twice in one object")
    return made


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]


def check_text(value: Any) -> None:
    """Refuse half of a surrogate pair in a string; `value` is no deeper than `DEPTH`.

    Raises
    ------
    ValueError
        There is one.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x}"
            raise ValueError(f"{half} is half of a surrogate pair") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key)
            check_text(item)
    elif isinstance(value, list):
        for item in value:
            check_text(item)
