"""The figures that the README claims, computed from committed records: ``summary.csv``.

``python -m specbench.results.figures results/h200`` reads ``figures.yaml`` there and writes
``summary.csv`` beside it. Each entry of the YAML list names a figure's `id`, the `record` (a folder
of a run), its `arm`, the `column` of the record's ``repeats.csv``, the `unit`, and the `dataset`
where the record has several.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import DataError, SpecbenchError
from specbench.results.reading import read_run

COLUMNS = ("id", "value", "low", "high", "unit", "record", "command", "commit")
_KEYS = {"id", "record", "arm", "column", "unit"}


def summarise_figures(folder: Path) -> Path:
    """Write `folder`/summary.csv: the median over repeats of each figure, and their range.

    Raises
    ------
    DataError
        An entry that lacks a key or names a record, arm or column that is not there, a record whose
        arm did not pass, or an id given twice.
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
    try:
        repeats = pd.read_csv(record / "repeats.csv")
    except OSError as error:
        raise DataError(f"{name}: cannot read the repeats of {record}: {error}") from error
    chosen = repeats[repeats["arm"] == entry["arm"]]
    if "dataset" in entry:
        chosen = chosen[chosen["dataset"] == entry["dataset"]]
    if chosen.empty or entry["column"] not in chosen:
        raise DataError(f"{name}: {record} has no {entry['column']} of {entry['arm']}")
    if chosen["dataset"].nunique() > 1:
        raise DataError(f"{name}: {record} has several datasets; add 'dataset' to the figure")
    if set(chosen["status"]) != {"PASSED"}:
        raise DataError(f"{name}: {entry['arm']} in {record} did not pass")
    values = chosen[entry["column"]]
    if values.isna().any():
        raise DataError(f"{name}: {entry['column']} of {entry['arm']} in {record} is unknown")
    run = read_run(record)
    return {
        "id": name,
        "value": values.median(),
        "low": values.min(),
        "high": values.max(),
        "unit": entry["unit"],
        "record": f"{folder.name}/{entry['record']}",
        "command": " ".join(run.environment.get("argv") or []),
        "commit": (run.environment.get("git") or {}).get("commit"),
    }


if __name__ == "__main__":
    try:
        print(summarise_figures(Path(sys.argv[1])))  # noqa: T201 - a command
    except SpecbenchError as error:
        sys.exit(f"error: {error}")
