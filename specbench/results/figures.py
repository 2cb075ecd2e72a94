"""The figures that the README claims, computed from committed records: ``summary.csv``.

``python -m specbench.results.figures results/h200`` reads ``figures.yaml`` there and writes
``summary.csv`` beside it. Each entry of the YAML list names a figure's `id`, the `record` (a folder
of a run), the `column` of its `table` (``repeats.csv`` by default), `where` (the rows, by columns
that have one value each: ``{arm: vegas}``), and the `unit`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import DataError, SpecbenchError
from specbench.results.reading import read_run

COLUMNS = ("id", "value", "low", "high", "unit", "record", "command", "commit")
_KEYS = {"id", "record", "column", "unit", "where"}


def summarise_figures(folder: Path) -> Path:
    """Write `folder`/summary.csv: the median over repeats of each figure, and their range.

    Raises
    ------
    DataError
        An entry that lacks a key or names a record, column or rows that are not there, a pass that
        did not end PASSED, or an id given twice.
    """
    import pandas as pd

    definitions = folder / "figures.yaml"
    try:
        entries = yaml.safe_load(definitions.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {definitions}: {error}") from error
    rows = [_figure(folder, entry) for entry in entries or []]
    ids = [row["id"] for row in rows]
    double = sorted({name for name in ids if ids.count(name) > 1})
    if double:
        raise DataError(f"{definitions}: given twice: {', '.join(double)}")
    path = folder / "summary.csv"
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(path, index=False)
    return path


def _figure(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    import pandas as pd

    missing = _KEYS - set(entry)
    if missing:
        raise DataError(f"the figure {entry.get('id', entry)} lacks {', '.join(sorted(missing))}")
    name, record = entry["id"], folder / entry["record"]
    table = record / entry.get("table", "repeats.csv")
    try:
        chosen = pd.read_csv(table)
    except OSError as error:
        raise DataError(f"{name}: cannot read {table}: {error}") from error
    for column, value in entry["where"].items():
        chosen = chosen[chosen[column] == value] if column in chosen else chosen[:0]
    column = entry["column"]
    if chosen.empty or column not in chosen:
        raise DataError(f"{name}: {table} has no {column} where {entry['where']}")
    for key in ("dataset", "arm", "case"):
        if key in chosen and chosen[key].nunique() > 1:
            raise DataError(f"{name}: several values of {key} in {table}; add it to 'where'")
    if "status" in chosen and set(chosen["status"]) != {"PASSED"}:
        raise DataError(f"{name}: {table} has passes that did not end PASSED")
    values = chosen[column]
    if values.isna().any():
        raise DataError(f"{name}: {column} is unknown in {table}")
    environment = _environment(record)
    return {
        "id": name,
        "value": values.median(),
        "low": values.min(),
        "high": values.max(),
        "unit": entry["unit"],
        "record": f"{folder.name}/{entry['record']}",
        "command": " ".join(environment.get("argv") or []),
        "commit": (environment.get("git") or {}).get("commit"),
    }


def _environment(record: Path) -> dict[str, Any]:
    """Of a run, or of a table that has only its environment beside it."""
    alone = record / "environment.json"
    if not alone.is_file():
        return read_run(record).environment
    content: dict[str, Any] = json.loads(alone.read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    try:
        print(summarise_figures(Path(sys.argv[1])))  # noqa: T201 - a command
    except SpecbenchError as error:
        sys.exit(f"error: {error}")
