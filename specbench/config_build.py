"""A configuration from a YAML file under the options of a command line."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.parsing import shown
from specbench.registry import unknown

C = TypeVar("C", bound=BaseModel)
# Names that may stand alone in a YAML file, and lists that keep each value once.
_LISTS = ("method", "dataset", "vllm_arg", "ratios", "gammas", "data", "eval_data", "tuned")
# And lists in which a value may come twice.
_SEQUENCES = ("tree_shape",)


_MOST_SHOWN = 5


def build_config(values: dict[str, Any], file: Path | None = None) -> RunConfig:
    """The configuration of a run; see `build`."""
    return build(RunConfig, values, file)


def build(kind: type[C], values: dict[str, Any], file: Path | None = None) -> C:
    """The configuration from a YAML file, if any, overridden by `values`.

    Parameters
    ----------
    kind : type
        RunConfig, TuneConfig or TrainConfig.
    values : dict
        Options given on the command line; `None` means not given.
    file : Path, optional
        A YAML mapping of option names (with ``_`` or ``-``) to values.

    Raises
    ------
    UsageError
        An unreadable file, an unknown key (the nearest is suggested), or a value out of range.
    """
    merged = read_yaml(file) if file else {}
    given = {key: value for key, value in values.items() if value is not None}
    places = dict.fromkeys(merged.keys() - given.keys(), f" (in {file})")
    merged |= given
    known = list(kind.model_fields)
    for key, value in merged.items():
        if key not in known:
            raise UsageError(f"{unknown('option', key, known)}{places.get(key, '')}")
        _check_plain(key, value, places.get(key, ""))
    for key in (*_LISTS, *_SEQUENCES):
        if isinstance(merged.get(key), str | int | float | Path):
            merged[key] = (merged[key],)
        listed = merged.get(key)
        if key in _LISTS and isinstance(listed, list | tuple):
            # what cannot be a key is no value of a list either: the model says which
            hashable = all(isinstance(item, str | int | float | Path) for item in listed)
            merged[key] = tuple(dict.fromkeys(listed)) if hashable else tuple(listed)
    try:
        return kind(**merged)
    except ValidationError as error:
        raise UsageError(_explain(error, places)) from error


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file, keys with ``_``.

    Raises
    ------
    UsageError
        The file is missing, is no YAML, or holds no mapping.
    """
    from specbench.parsing_yaml import parse_yaml

    try:
        content = parse_yaml(file.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the configuration {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{file} must hold a mapping of options, not {type(content).__name__}")
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def _check_plain(key: str, value: Any, place: str) -> None:
    """Refuse text that no path or file takes, and integers that no size can be."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_plain(key, item, place)
    option = f"--{key.replace('_', '-')}"
    if isinstance(value, str) and ("\0" in value or not _encodes(value)):
        raise UsageError(f"{option} {shown(value)}: not a text that a file can hold{place}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"{option} {shown(value)}: beyond the range of 64 bits{place}")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(error: ValidationError, places: dict[str, str]) -> str:
    lines = []
    # that a list is too short is said where nothing is wrong with its values
    found = [e for e in error.errors() if e["type"] != "too_short"] or error.errors()
    for item in found[:_MOST_SHOWN]:
        name = str(item["loc"][0]) if item["loc"] else "?"
        reason = item["msg"].lower() + places.get(name, "")
        lines.append(f"--{name.replace('_', '-')} {shown(item['input'])}: {reason}")
    more = len(found) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")
