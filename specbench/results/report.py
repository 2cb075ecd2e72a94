"""Tables, plots and the page of runs, from what their folders hold and nothing else."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import DataError
from specbench.results.caveats import collect_warnings, merged_warnings
from specbench.results.compact import compact_frames
from specbench.results.contexts import context_frame, context_rows
from specbench.results.metrics import Row
from specbench.results.plain import one_line
from specbench.results.protocol import protocol_lines
from specbench.results.records import RunRecord, Status
from specbench.results.sources import Source, check_comparable, read_sources
from specbench.results.tables import build_frames, build_rows, merge_rows, to_csv

if TYPE_CHECKING:
    import pandas as pd

MARK = "NOT COMPARABLE"


@dataclass(frozen=True)
class Summary:
    """What a report says.

    Attributes
    ----------
    sources : list of Source
        The runs that it is made of.
    rows : list of dict
        Every figure, a row an arm and workload; all tables and plots are made of them.
    contexts : list of dict
        Figures by the length of the prompt.
    frames : dict of str to DataFrame
        The CSV files by name: throughput, acceptance, overhead, context, scores, lossless,
        repeats, requests.
    warnings : list of str
        What a reader must know before trusting a figure.
    marks : list of str
        Why the runs should not be compared, where the user forced it.
    exit_status : int
        0 passed, 1 a lossless method was not lossless, 3 an arm failed or is unfinished.
    files : list of Path
        What was written.
    """

    sources: list[Source]
    rows: list[Row]
    contexts: list[Row]
    frames: dict[str, "pd.DataFrame"]
    warnings: list[str]
    marks: list[str]
    exit_status: int
    files: list[Path] = field(default_factory=list)

    @property
    def runs(self) -> list[RunRecord]:
        """Each run's `run.json`."""
        return [source.run for source in self.sources]

    @property
    def header(self) -> list[str]:
        """What stands over every table and under every plot."""
        marks = [f"{MARK}: {'; '.join(self.marks)}"] if self.marks else []
        return [one_line(line) for line in (*marks, *protocol_lines(self.runs))]


def summarise(folders: Path | Sequence[Path], force: bool = False) -> Summary:
    """Read the records in `folders` and derive every figure, writing nothing.

    Parameters
    ----------
    folders : Path or sequence of Path
        Folders of runs, or of folders of runs.
    force : bool
        Report runs together that cannot be compared, marked.

    Raises
    ------
    UsageError
        A folder holds no run, or the runs cannot be compared; the message names the differences.
    DataError
        A record that cannot be read.
    InvariantError
        A record that contradicts itself.
    """
    sources = read_sources([folders] if isinstance(folders, Path) else folders)
    marks = check_comparable(sources, force)
    if len(sources) == 1:
        (only,) = sources
        rows = build_rows(only.run, only.groups)
        warnings = collect_warnings(only.data, only.groups)
    else:
        rows = merge_rows(sources)
        warnings = merged_warnings(sources)
    contexts = _contexts(sources, rows)
    return Summary(
        sources=sources,
        rows=rows,
        contexts=contexts,
        frames=_frames(sources, rows, contexts),
        warnings=[one_line(line) for line in warnings],
        marks=marks,
        exit_status=exit_status(sources),
    )


def write_reports(
    folders: Path | Sequence[Path], output: Path | None = None, force: bool = False
) -> Summary:
    """Write tables, plots and the page, anew from the records.

    Parameters
    ----------
    folders, force
        As for `summarise`.
    output : Path, optional
        Where to; by default the folder of the only run.

    Raises
    ------
    UsageError, DataError, InvariantError
        As `summarise`; DataError also where the output cannot be written to.
    """
    summary = summarise(folders, force)
    if output is None:
        output = summary.sources[0].folder
    try:
        for name, content in render_files(summary).items():
            summary.files.append(write_file(output / name, content))
    except DataError as error:
        raise DataError(
            f"{error}; the records are unharmed: 'specbench report DIR --output ELSEWHERE' makes "
            "tables and plots of them"
        ) from error
    return summary


def render_files(summary: Summary) -> dict[str, bytes]:
    """Every file of a report by its name; equal records give equal bytes."""
    from specbench.results.page import render_page
    from specbench.results.plots import draw_plots
    from specbench.results.summary_table import to_latex, to_markdown, value_frame

    rows, header = summary.rows, summary.header
    frames = summary.frames | {"table": value_frame(rows)}
    files = {f"{name}.csv": to_csv(frame) for name, frame in frames.items()}
    files["table.md"] = to_markdown(rows, header, summary.warnings).encode()
    files["table.tex"] = to_latex(rows, header).encode()
    plots = draw_plots(rows, summary.contexts, header)
    return files | plots | {"report.html": render_page(summary, plots).encode()}


def exit_status(sources: Sequence[Source]) -> int:
    """What the process ends with. A wrong output outranks a missing one."""
    states = [cell.status for source in sources for group in source.groups for cell in group.cells]
    states += [refused.status for source in sources for refused in source.run.refused]
    if Status.LOSSY in states:
        return 1
    return 0 if all(status is Status.PASSED for status in states) else 3


def write_file(path: Path, content: bytes) -> Path:
    """Write `path` as a whole or not at all; DataError where it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    return path


def _contexts(sources: Sequence[Source], rows: Sequence[Row]) -> list[Row]:
    """Figures by prompt length, under the names that the rows have."""
    several = len(sources) > 1
    names = {(row["run"], row["dataset"], row["arm"]): row["series"] for row in rows}
    found = []
    for source in sources:
        run = source.label if several else None
        for row in context_rows(source.groups):
            found.append(row | {"run": run, "series": names[run, row["dataset"], row["arm"]]})
    return found


def _frames(
    sources: Sequence[Source], rows: Sequence[Row], contexts: Sequence[Row]
) -> dict[str, "pd.DataFrame"]:
    """The CSV files; of several runs with the run as the first column."""
    import pandas as pd

    parts = []
    for source in sources:
        several = len(sources) > 1
        label = source.label if several else None
        mine = [row for row in rows if row["run"] == label]
        frames = build_frames(mine, source.data.verdicts) | compact_frames(source.groups)
        frames["context"] = context_frame([row for row in contexts if row["run"] == label])
        if several:
            for frame in frames.values():
                frame.insert(0, "run", label)
        parts.append(frames)
    return {name: pd.concat([part[name] for part in parts]) for name in parts[0]}
