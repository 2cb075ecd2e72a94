"""JSON and YAML from outside: read strictly, whatever the file holds."""

import json
import re
from typing import Any, NoReturn

import yaml

DEPTH = 64
YAML_BYTES = 1 << 20
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
        _check_text(value)
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


def _check_text(value: Any) -> None:
    """No half of a surrogate pair in a string; `value` is no deeper than `DEPTH`."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x}"
            raise ValueError(f"{half} is half of a surrogate pair") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)


class _Loader(yaml.SafeLoader):
    """Plain mappings, lists and scalars: nothing that stands for more than its text.

    An alias may multiply what it stands for, or hold itself.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"the alias *{event.anchor} is not supported", event.start_mark
            )
        self.depth += 1
        if self.depth > DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested more than {DEPTH} deep", self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {kind}", node.start_mark
            ) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = super().construct_mapping(node, deep=True)
        if len(made) != len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key stands twice in one mapping", node.start_mark
            )
        return made


def parse_yaml(content: bytes) -> Any:
    """The value that a YAML document stands for; aliases and keys that stand twice are refused.

    Raises
    ------
    ValueError
        No YAML, or more than a configuration can need: the message says where.
    """
    if len(content) > YAML_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; a configuration has at most {YAML_BYTES}")
    loader: _Loader | None = None
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        value = loader.get_single_data()
        _check_text(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{(error.problem or error.context or 'no YAML')[:200]}{at}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    except RecursionError:
        raise ValueError(f"nested more than {DEPTH} deep") from None
    finally:
        if loader is not None:
            loader.dispose()
