"""Documents of a training: any folder or file of text or JSONL, or a dataset of the hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.datasets.base import field_names
from specbench.errors import DataError, UsageError
from specbench.parsing import parse_json

HUB = "hub:"
_ROWS = (".jsonl", ".ndjson")


def documents(spec: str, field: str, skipped: list[str]) -> Iterator[str]:
    """The documents of `spec`, files in the order of their paths, so that neighbours stay together.

    Parameters
    ----------
    spec : str
        A folder (searched through, hidden files left out), a file, or ``hub:OWNER/NAME[:CONFIG]``.
        A row of a .jsonl file is a document, and so is every other file that is UTF-8 text.
    field : str
        Of a row: what holds the text.
    skipped : list of str
        Names of files that are no text are added to it.

    Raises
    ------
    UsageError
        There is no such file or folder.
    DataError
        A row that is no JSON object, or has no text in `field`; says where and what it has.
    """
    if spec.startswith(HUB):
        return _hub(spec, field)
    path = Path(spec).expanduser()
    if not path.exists():
        raise UsageError(
            f"--data {spec}: there is no such file or folder (a dataset of the hub is "
            "hub:OWNER/NAME)"
        )
    return _local(path, field, skipped)


def _local(path: Path, field: str, skipped: list[str]) -> Iterator[str]:
    for file in sorted(_files(path)):
        content = _read(file)
        if content is None:
            skipped.append(os.fsencode(file.name).decode(errors="replace"))
        elif file.suffix.lower() in _ROWS:
            yield from _rows(file, content, field)
        elif content.strip():
            yield content


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            yield file


def _read(file: Path) -> str | None:
    """The file's text; None where it is none."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _rows(file: Path, content: str, field: str) -> Iterator[str]:
    # only \n ends a line: str.splitlines would also split at U+2028 inside a string
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, finite=False)
        except ValueError as error:
            raise DataError(f"{file} line {number} is not valid JSON: {error}") from error
        yield _text(row, field, f"{file} line {number}")


def _text(row: Any, field: str, place: str) -> str:
    if not isinstance(row, dict):
        raise DataError(f"{place}: a row must be an object, not {type(row).__name__}")
    text = row.get(field)
    if not isinstance(text, str):
        found = f"a {type(text).__name__}" if field in row else "missing"
        raise DataError(
            f"{place}: the field {field!r} is {found}; it has {field_names(row)}: name the "
            "one with the text with --text-field"
        )
    return text


def _hub(spec: str, field: str) -> Iterator[str]:
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    name, _, subset = spec.removeprefix(HUB).partition(":")
    # the error base of the HTTP library, which differs between versions of huggingface_hub
    transport: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        table = datasets.load_dataset(name, subset or None, split="train")
    # beside the library's own errors, what it makes of a damaged cache
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        transport,
        datasets.exceptions.DatasetsError,
    ) as error:
        detail = (str(error).strip().splitlines() or ["no details"])[0][:300]
        raise DataError(
            f"cannot load {name} from the hub ({type(error).__name__}: {detail}); without a "
            "network, give a folder of text as --data"
        ) from error
    for number, row in enumerate(table):
        yield _text(row, field, f"{name} row {number}")
