"""Items of a dataset from the hub, a local file or folder, or the built-in sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.datasets.base import Dataset, Item
from specbench.datasets.prompt_file import PromptFile
from specbench.errors import DataError, UsageError
from specbench.parsing import parse_json
from specbench.registry import nearest, suggestion

SUFFIXES = (".jsonl", ".json", ".parquet")
_METADATA_FILES = ("dataset_info.json", "dataset_infos.json", "state.json")
SAMPLE_ITEMS = 16
# text is packed to a hundredth at the very best
_MOST_COMPRESSED = 1000

Located = tuple[str, Any]


@dataclass(frozen=True)
class Loaded:
    """Items and where they came from.

    Attributes
    ----------
    items : list of Item
    source : str
        A label for the records: ``"hub:<id>"``, ``"sample"``, or ``"path:<last name>"``.
    revision : str or None
        The commit on the hub where it is known; `None` for other sources.
    """

    items: list[Item]
    source: str
    revision: str | None


def load_items(
    dataset: Dataset,
    source: str | None = None,
    revision: str | None = None,
    *,
    seed: int = 0,
    num: int | None = None,
    target_tokens: int | None = None,
    tokenizer: Any = None,
) -> Loaded:
    """Load a dataset.

    Parameters
    ----------
    dataset : Dataset
        A `PromptFile` is always read from its own path.
    source : str, optional
        ``"hub"`` (the default), ``"sample"``, or the path of a file or folder.
    revision : str, optional
        Commit, tag or branch on the hub.
    seed, num, target_tokens, tokenizer
        For the sample only: its seed, how many items (16 by default), and how long they are at
        least, in tokens of `tokenizer` (without one, of 4.5 characters). Every other
        source yields all of its items, so that those that are too long can be replaced.

    Raises
    ------
    UsageError
        A revision for a source that has none, or a source that is neither a known word nor a path.
    DataError
        Nothing could be read, or a row is broken; the message names the place.
    """
    if isinstance(dataset, PromptFile):
        return _from_path(dataset, dataset.path)
    if source in (None, "hub"):
        from specbench.datasets.hub import hub_rows

        hub, commit = hub_rows(dataset, revision)
        items = _normalise(dataset, hub)
        if not items:
            raise DataError(f"dataset {dataset.name}: {dataset.hub_id} holds no rows")
        return Loaded(items, f"hub:{dataset.hub_id}", commit)
    if revision is not None:
        raise UsageError(f"--revision {revision} needs --source hub, not --source {source}")
    if source == "sample":
        from specbench.datasets.sample import sample_items

        wanted = target_tokens if dataset.sample_fills_context else None
        rows = sample_items(dataset.name, num or SAMPLE_ITEMS, seed, wanted, tokenizer)
        located = ((f"sample item {index}", row) for index, row in enumerate(rows))
        return Loaded(_normalise(dataset, located), "sample", None)
    return _from_path(dataset, Path(str(source)))


def read_rows(file: Path) -> Iterator[Located]:
    """The rows of one file, each with its place for messages.

    Raises
    ------
    DataError
        The file cannot be read or a line is broken.
    """
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise DataError(f"cannot read {file}: its name must end in one of {known}")
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(file)
        else:
            text = file.read_text(encoding="utf-8-sig")
            yield from _jsonl_rows(file, text) if suffix == ".jsonl" else _json_rows(file, text)
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from error


def _from_path(dataset: Dataset, path: Path) -> Loaded:
    if path.is_dir():
        files = _choose_files(dataset, path)
    elif path.is_file():
        files = [path]
    else:
        near = nearest(str(path), ("hub", "sample"))
        hint = suggestion(near) or " A source is hub, sample or a path."
        raise UsageError(f"dataset {dataset.name}: no file or folder {str(path)!r}.{hint}")
    items = _normalise(dataset, (row for file in files for row in read_rows(file)))
    if not items:
        raise DataError(f"dataset {dataset.name}: {path} holds no rows")
    return Loaded(items, f"path:{path.resolve().name}", None)


def _choose_files(dataset: Dataset, folder: Path) -> list[Path]:
    """The folder's files: those named after the dataset, else after its split, else all."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and file.name not in _METADATA_FILES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not files:
        raise DataError(f"dataset {dataset.name}: {folder} holds no {', '.join(SUFFIXES)} file")
    for prefix in (dataset.name, dataset.hub_split):
        named = [f for f in files if prefix and f.stem.replace("_", "-").startswith(prefix)]
        if named:
            return named
    return files


def _normalise(dataset: Dataset, rows: Iterator[Located]) -> list[Item]:
    items = []
    for index, (place, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{place}: a row must be an object, not {type(row).__name__}")
        try:
            items.append(dataset.normalise(row, index))
        except DataError as error:
            raise DataError(f"dataset {dataset.name}, {place}: {error}") from error
    return items


def _jsonl_rows(file: Path, text: str) -> Iterator[Located]:
    # Only \n ends a line: str.splitlines would also split at U+2028 inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, finite=False)
        except ValueError as error:
            raise DataError(f"{file} line {number} is not valid JSON: {error}") from error
        yield f"{file} line {number}", row


def _json_rows(file: Path, text: str) -> Iterator[Located]:
    try:
        content = parse_json(text, finite=False)
    except ValueError as error:
        raise DataError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, list):
        raise DataError(f"{file} must hold a list of rows, not {type(content).__name__}")
    for number, row in enumerate(content):
        yield f"{file} row {number}", row


def _parquet_rows(file: Path) -> Iterator[Located]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            if size > _MOST_COMPRESSED * file.stat().st_size:
                raise DataError(
                    f"{file} states {size:,} bytes of rows, more than its {file.stat().st_size:,} "
                    "bytes can hold"
                )
            rows = opened.read().to_pylist()
    # what Arrow raises of damaged files, and Python of values that it has no type for
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise DataError(f"{file} is not a valid Parquet file: {reason}") from error
    for number, row in enumerate(rows):
        yield f"{file} row {number}", row
