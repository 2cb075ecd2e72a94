"""Tables and plots of a run, from what its folder holds and nothing else."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import DataError
from specbench.results.caveats import collect_warnings
from specbench.results.cells import Group, build_groups
from specbench.results.compact import compact_frames
from specbench.results.metrics import Row
from specbench.results.reading import read_folder
from specbench.results.records import RunRecord, Status
from specbench.results.tables import build_frames, build_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Summary:
    """What a report says.

    Attributes
    ----------
    run : RunRecord
    rows : list of dict
        Every figure, a row an arm and dataset; the terminal table and the plots are made of them.
    frames : dict of str to DataFrame
        The CSV files by name: throughput, acceptance, overhead, lossless, repeats, requests.
    warnings : list of str
        What a reader must know before trusting a figure.
    exit_status : int
        0 passed, 1 a lossless method was not lossless, 3 an arm failed or is unfinished.
    files : list of Path
        What was written.
    """

    run: RunRecord
    rows: list[Row]
    frames: dict[str, "pd.DataFrame"]
    warnings: list[str]
    exit_status: int
    files: list[Path]


def summarise(folder: Path) -> Summary:
    """Read the records in `folder` and derive every figure, writing nothing.

    Raises
    ------
    UsageError
        The folder holds no run.
    DataError
        A record that cannot be read.
    InvariantError
        A record that contradicts itself.
    """
    data = read_folder(folder)
    groups = build_groups(data)
    rows = build_rows(data.run, groups)
    return Summary(
        run=data.run,
        rows=rows,
        frames=build_frames(rows, data.verdicts) | compact_frames(groups),
        warnings=collect_warnings(data, groups),
        exit_status=exit_status(groups),
        files=[],
    )


def write_reports(folder: Path) -> Summary:
    """Write the CSV files and plots of the run in `folder`, anew from its records.

    Raises
    ------
    UsageError, DataError, InvariantError
        As `summarise`; DataError also where the folder cannot be written to.
    """
    from specbench.results.plots import draw_plots

    summary = summarise(folder)
    contents = {
        f"{name}.csv": frame.to_csv(index=False).encode() for name, frame in summary.frames.items()
    }
    contents |= {f"{name}.png": png for name, png in draw_plots(summary.run, summary.rows).items()}
    for name, content in contents.items():
        summary.files.append(write_file(folder / name, content))
    return summary


def exit_status(groups: list[Group]) -> int:
    """What the process ends with. A wrong output outranks a missing one."""
    states = [cell.status for group in groups for cell in group.cells]
    if Status.LOSSY in states:
        return 1
    return 0 if all(status is Status.PASSED for status in states) else 3


def write_file(path: Path, content: bytes) -> Path:
    """Write `path` as a whole or not at all; DataError where it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    return path
