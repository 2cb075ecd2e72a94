"""The table that a run ends with on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.report import MARK, Summary
from specbench.results.summary_table import COLUMNS, STATUS, cell_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CPU_NOTE = "A CPU run checks correctness and acceptance; speed is to be read in results/h200/."
# two lines, so that a table of one dataset fits 80 columns
TITLES = {
    "decode tok/s": "decode\ntok/s",
    "speed-up [95 %]": "speed-up\n[95 %]",
    "over vLLM": "over\nvLLM",
    "overhead %": "over-\nhead %",
}
_STYLES = {"PASSED": "green", "LOSSY": "bold red", "unfinished": "yellow"}


def print_summary(summary: Summary, console: "Console") -> None:
    """Print protocol, table and warnings."""
    for line in summary.header:
        style = "bold red" if line.startswith(MARK) else None
        console.print(line, style=style, markup=False, highlight=False)
    if any(run.config.get("device") == "cpu" for run in summary.runs):
        console.print(CPU_NOTE, style="bold", markup=False, highlight=False)
    console.print(build_table(summary.rows))
    for line in score_lines(summary.rows):
        console.print(line, markup=False, highlight=False)
    for line in summary.warnings:
        console.print(f"warning: {line}", style="yellow", markup=False, highlight=False)


def score_lines(rows: Sequence[Row]) -> list[str]:
    """A line a workload with the task scores of its arms, where there are any."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["score"] is not None:
            text = f"{row['series']} {row['score']:.2f}"
            if row["score_low"] is not None:
                text += f" [{row['score_low']:.2f}–{row['score_high']:.2f}]"
            title = f"{row['workload']} {row['score_name']}, n {row['score_prompts']}"
            found.setdefault((row["workload"], title), []).append(text)
    return [f"score  {title}: {', '.join(texts)}" for (_, title), texts in found.items()]


def build_table(rows: Sequence[Row]) -> "Table":
    """Arms by workloads; what is unknown is a dash. A single workload stands in the title."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    several = len(workloads) > 1
    table = Table(
        title=None if several or not workloads else Text(workloads[0]),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
        pad_edge=False,
    )
    columns = COLUMNS if several else COLUMNS[1:]
    for column in columns:
        title = TITLES.get(column.title, column.title)
        if column.kind == "text":
            table.add_column(title, overflow="fold", no_wrap=column is STATUS)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        first = row["workload"] != previous
        if first and previous is not None:
            table.add_section()
        cells = []
        for column in columns:
            text = cell_text(row, column)
            if column.key == "workload" and not first:
                text = ""
            style = _STYLES.get(text, "red") if column is STATUS else ""
            cells.append(Text(text, style=style))
        table.add_row(*cells)
        previous = row["workload"]
    return table
