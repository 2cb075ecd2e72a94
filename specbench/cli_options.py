"""The options of a command, made from the fields of its configuration."""

import inspect
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specbench.cli_help import complete_datasets, complete_methods, group_of
from specbench.config import RunConfig

# Options that may be repeated and that take lists such as "aime25,codeelo".
LISTS = ("method", "host", "dataset")
# Options that take a list of numbers such as "0.05,0.1".
NUMBERS = ("ratios", "gammas", "tree_shape")
# Those of them in which a number may come twice.
SEQUENCES = ("tree_shape",)
# Options that may be repeated and whose values are taken whole, with what the help calls a value.
REPEATED = {"vllm_arg": "KEY=VALUE", "data": "TEXT", "eval_data": "TEXT", "tuned": "PATH"}

_COMPLETE = {"method": complete_methods, "dataset": complete_datasets}
# What the help calls a value; RunConfig parses it, so that there is one set of messages.
_VALUES = {bool: None, int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


def run_parameters(config: type[BaseModel] = RunConfig) -> list[inspect.Parameter]:
    """A keyword parameter for each field of `config`, as typer reads them.

    The values default to None, which stands for "not given", so that a configuration file is
    overridden by what was typed and nothing else. Everything but a flag stays text here.
    """
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(name, field),
        )
        for name, field in config.model_fields.items()
    ]


def split_lists(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with the options that take lists split at commas; only sequences keep doubles."""
    values = values | {name: split_list(values[name]) for name in LISTS if values.get(name)}
    for name in NUMBERS:
        if (given := values.get(name)) is not None:
            whole = name in SEQUENCES
            values[name] = tuple(given.split(",")) if whole else split_list([given])
    return values


def split_list(given: Iterable[str]) -> tuple[str, ...]:
    """Names from repeated and comma-separated values, in order, each once.

    Everything after ``file:`` is one path, commas included.
    """
    names: dict[str, None] = {}
    for value in given:
        before, colon, path = value.partition("file:")
        if before and not before.endswith(","):
            before, colon = value, ""
        for name in before.split(","):
            if name.strip():
                names[name.strip()] = None
        if colon:
            names[colon + path] = None
    return tuple(names)


def _annotation(name: str, field: FieldInfo) -> Any:
    plain = _plain_type(field.annotation)
    kind: Any = bool if plain is bool else str
    metavar = "|".join(_choices(field.annotation)) or _VALUES[plain]
    help_text = field.description or ""
    if name in LISTS:
        kind, metavar = list[str], "NAME[,NAME]"
        help_text += " May be repeated."
    if name in NUMBERS or (name not in LISTS and plain is int and _is_tuple(field.annotation)):
        metavar = f"{metavar}[,{metavar}]"
    if name in REPEATED:
        kind, metavar = list[str], REPEATED[name]
        help_text += " May be repeated."
    default = _shown_default(field.default)
    option = typer.Option(
        *_flags(name, plain),
        help=f"{help_text} Default: {default}." if default else help_text,
        metavar=metavar,
        show_default=False,
        rich_help_panel=group_of(name),
        autocompletion=_COMPLETE.get(name),
    )
    return Annotated[kind | None, option]


def _flags(name: str, plain: type) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [f"{flag}/--no-{flag.removeprefix('--')}"] if plain is bool else [flag]


def _shown_default(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(default)
    return "" if default is None else str(default)


def _members(annotation: Any) -> list[Any]:
    """The types that `annotation` is made of: through unions, tuples, and `Annotated`."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, tuple):
        return [inner for part in get_args(annotation) for inner in _members(part)]
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    return [annotation]


def _is_tuple(annotation: Any) -> bool:
    return any(get_origin(part) is tuple for part in (annotation, *get_args(annotation)))


def _plain_type(annotation: Any) -> type:
    for member in _members(annotation):
        if get_origin(member) is Literal:
            return str
        if member in _VALUES:
            return member
    raise TypeError(f"no command-line type for {annotation}")


def _choices(annotation: Any) -> list[str]:
    return [
        value
        for member in _members(annotation)
        if get_origin(member) is Literal
        for value in get_args(member)
    ]
