"""What an analysis leaves: the record, a CSV and two plots a measurement, a short table each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from specbench.errors import UsageError
from specbench.results.records import RunRecord
from specbench.results.report import write_file
from specbench.results.summary_table import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console

RECORD = "analysis.json"
_SHOWN_ROWS = 6

Rows = Sequence[dict[str, Any]]


class AnalysisRecord(RunRecord):
    """`analysis.json`: what `run.json` says, and what the kernels were timed at."""

    kernels: dict[str, Any] = Field(description="shape, type, whose kernels, and how timed")


def check_free(folder: Path) -> None:
    """Refuse an output that holds something, before work is spent.

    Raises
    ------
    UsageError
        The folder is a file, or not empty.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the output {folder} is a file; give a folder with --output")
    held = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if held:
        raise UsageError(
            f"the output folder {folder} already holds {held[0]}"
            f"{f' and {len(held) - 1} more' if held[1:] else ''}; give another --output"
        )


def open_folder(folder: Path, record: AnalysisRecord) -> None:
    """Make the folder and write the record, before anything is measured.

    Raises
    ------
    UsageError
        The folder cannot be made.
    DataError
        The record cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the output folder {folder}: {error.strerror}") from error
    write_file(folder / RECORD, (record.model_dump_json(indent=2) + "\n").encode())


def write_measurement(
    folder: Path, name: str, columns: Sequence[str], rows: Rows, plots: dict[str, bytes]
) -> None:
    """Write ``<name>.csv``, unknown as an empty field, and the plots by their suffix."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    write_file(folder / f"{name}.csv", frame.to_csv(index=False).encode())
    for suffix, content in plots.items():
        write_file(folder / f"{name}.{suffix}", content)


def print_kernels(console: "Console", rows: Rows) -> None:
    """Medians and ranges, a line a number of query rows: some of them."""
    counts = sorted({row["query_rows"] for row in rows})
    step = -(-len(counts) // _SHOWN_ROWS)
    shown = [count for count in counts if count == counts[-1] or (count - 1) % step == 0]
    names = list(dict.fromkeys(row["collecting"] for row in rows))
    lines = []
    for count in shown:
        mine = {row["collecting"]: row for row in rows if row["query_rows"] == count}
        times = (
            f"{r['median_us']:.0f} [{r['low_us']:.0f}–{r['high_us']:.0f}]"
            for r in (mine[name] for name in names)
        )
        lines.append([str(count), *times])
    title = "attention of one layer, µs: median [lowest–highest]"
    _print(console, title, ["query rows", *(f"collecting {name}" for name in names)], lines)


def print_overlap(console: "Console", rows: Rows) -> None:
    """Mean overlap by distance."""
    lines = [
        [row["rows"], str(row["distance"]), str(row["pairs"])]
        + [_number(row[name], ".3f") for name in ("overlap", "low", "high", "chance")]
        for row in rows
    ]
    heads = ["rows", "distance", "pairs", "overlap", "lowest layer", "highest layer", "by chance"]
    _print(console, "overlap of the sets that single rows choose, share of a set", heads, lines)


def print_acceptance(console: "Console", rows: Rows) -> None:
    """AL and conditional acceptance by position, a line a source."""
    lines = []
    for source in dict.fromkeys(row["source"] for row in rows):
        mine = [row for row in rows if row["source"] == source]
        rates = (_number(row["conditional_acceptance"], ".2f") for row in mine)
        lines.append([source, f"{mine[0]['spec_decode_acceptance_length']:.2f}", *rates])
    positions = [str(row["position"]) for row in rows if row["source"] == rows[0]["source"]]
    title = "acceptance of each draft position, given that those before were accepted"
    _print(console, title, ["sets from", "AL", *positions], lines)


def _print(
    console: "Console", title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # brackets are no markup here, and a title of the table's own would wrap at its width
    console.print(title, style="bold", markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(heads[0])
    for head in heads[1:]:
        table.add_column(head, justify="right")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
