"""The figures that the README claims, computed from committed records: ``summary.csv``.

``python -m specbench.results.figures results/h200`` reads ``figures.yaml`` there and writes
``summary.csv`` beside it. Each entry of the YAML list names a figure's `id`, the `record` (a folder
of a run), the `column` of its `table` (``repeats.csv`` by default), `where` (the rows, by columns
that have one value each: ``{arm: vegas}``), and the `unit`. Where the table has an interval of its
own, `low` and `high` name its columns. With `over`, other rows of the same table (``{arm: vllm}``),
the figure is the ratio of the two, repeat by repeat. With `scale`, a number, it is multiplied by it
(0.01 makes a fraction of a percentage). With ``take: max`` the figure is the greatest of all rows
that have one, and `where` may be empty.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.engine.safetensors_folder import read_json
from specbench.errors import DataError, SpecbenchError
from specbench.parsing import is_plain, shown
from specbench.parsing_yaml import parse_yaml
from specbench.results.reading import read_run

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("id", "value", "low", "high", "unit", "record", "command", "commit")
_KEYS = {"id", "record", "column", "unit", "where"}


def summarise_figures(folder: Path) -> Path:
    """Write `folder`/summary.csv: the median over repeats of each figure, and range or interval.

    Raises
    ------
    DataError
        An entry that lacks a key or names a record, column or rows that are not there, a pass that
        did not end PASSED, or an id given twice.
    """
    import pandas as pd

    definitions = folder / "figures.yaml"
    try:
        entries = parse_yaml(definitions.read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {definitions}: {reason}") from error
    if not isinstance(entries, list | None):
        raise DataError(f"{definitions} must hold a list of figures")
    rows = [_figure(folder, _checked(entry, definitions)) for entry in entries or []]
    ids = [row["id"] for row in rows]
    double = sorted({name for name in ids if ids.count(name) > 1})
    if double:
        raise DataError(f"{definitions}: given twice: {', '.join(double)}")
    path = folder / "summary.csv"
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(path, index=False)
    return path


def _checked(entry: Any, definitions: Path) -> dict[str, Any]:
    """An entry of the list, its fields of the types that they must have."""
    if not isinstance(entry, dict):
        raise DataError(f"{definitions}: a figure must be a mapping, not {shown(entry)}")
    missing = _KEYS - set(entry)
    if missing:
        raise DataError(
            f"{definitions}: the figure {shown(entry.get('id'))} lacks {', '.join(sorted(missing))}"
        )
    for key in ("id", "record", "column", "unit", "table", "low", "high"):
        if not isinstance(entry.get(key, ""), str):
            raise DataError(f"{definitions}: {key} must be a text, not {shown(entry[key])}")
    if not is_plain(entry.get("scale", 1), (int, float)):
        raise DataError(f"{definitions}: scale must be a number, not {shown(entry['scale'])}")
    for key in ("where", "over"):
        given = entry.get(key, {})
        values = given.values() if isinstance(given, dict) else [[]]
        if any(isinstance(value, dict | list) for value in values):
            raise DataError(
                f"{definitions}: {key!r} must give each column one value, not {shown(given)}"
            )
    if "over" in entry and {"low", "high"} & set(entry):
        raise DataError(f"{definitions}: {shown(entry['id'])}: a ratio has no interval's columns")
    if "take" in entry and (entry["take"] != "max" or {"over", "low", "high"} & set(entry)):
        raise DataError(
            f"{definitions}: {shown(entry['id'])}: take must be max, without over, low or high"
        )
    inside = definitions.parent.resolve()
    named = (inside / entry["record"] / entry.get("table", "repeats.csv")).resolve()
    if "\0" in str(named) or not named.is_relative_to(inside):
        raise DataError(f"{definitions}: {shown(entry['record'])} is outside {inside.name}")
    return entry


def _figure(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    import pandas as pd

    name, record = entry["id"], folder / entry["record"]
    table = record / entry.get("table", "repeats.csv")
    try:
        rows = pd.read_csv(table)
    # pandas' own errors are ValueErrors
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot read {table}: {str(error)[:300]}") from error
    column, all_rows = entry["column"], "take" in entry
    values, low, high = (
        _values(name, table, rows, entry["where"], wanted, all_rows)
        for wanted in (column, entry.get("low", column), entry.get("high", column))
    )
    if "over" in entry:
        other = _values(name, table, rows, entry["over"], column)
        if not (values.index.is_unique and other.index.is_unique):
            raise DataError(f"{name}: {table} has several rows a repeat")
        values = values / other
        if values.isna().any():
            raise DataError(f"{name}: {table} has other repeats for 'where' than for 'over'")
        low = high = values
    environment, scale = _environment(record), entry.get("scale", 1)
    return {
        "id": name,
        "value": scale * (values.max() if all_rows else values.median()),
        "low": scale * low.min(),
        "high": scale * high.max(),
        "unit": entry["unit"],
        "record": f"{folder.name}/{entry['record']}",
        "command": " ".join(map(str, environment.get("argv") or [])),
        "commit": (environment.get("git") or {}).get("commit"),
    }


def _values(
    name: str,
    table: Path,
    rows: "pd.DataFrame",
    where: dict[str, Any],
    column: str,
    all_rows: bool = False,
) -> "pd.Series[float]":
    """Of the chosen rows, by their repeat where the table has several; `all_rows`: where known."""
    import pandas as pd

    for key, value in where.items():
        rows = rows[rows[key] == value] if key in rows else rows[:0]
    if rows.empty or column not in rows:
        raise DataError(f"{name}: {table} has no {column} where {where}")
    for key in ("dataset", "arm", "case"):
        if not all_rows and key in rows and rows[key].nunique() > 1:
            raise DataError(f"{name}: several values of {key} in {table}; add it to 'where'")
    if "status" in rows and set(rows["status"]) != {"PASSED"}:
        raise DataError(f"{name}: {table} has passes that did not end PASSED")
    values = rows[column].set_axis(rows["repeat"] if "repeat" in rows else range(len(rows)))
    if all_rows:
        values = values.dropna()
    if values.isna().any() or values.empty:
        raise DataError(f"{name}: {column} is unknown in {table}")
    if not pd.api.types.is_numeric_dtype(values):
        raise DataError(f"{name}: {column} holds no numbers in {table}")
    return values


def _environment(record: Path) -> dict[str, Any]:
    """Of a run, of a training, or of a table that has only its environment beside it."""
    training, alone = record / "training.json", record / "environment.json"
    if training.is_file():
        file, content = training, read_json(training).get("environment")
    elif alone.is_file():
        file, content = alone, read_json(alone)
    else:
        return read_run(record).environment
    if isinstance(content, dict):
        argv, git = content.get("argv") or [], content.get("git") or {}
        if isinstance(argv, list) and isinstance(git, dict):
            return content
    raise DataError(f"{file} is no environment of a run")


if __name__ == "__main__":
    try:
        print(summarise_figures(Path(sys.argv[1])))  # noqa: T201 - a command
    except SpecbenchError as error:
        sys.exit(f"error: {error}")
