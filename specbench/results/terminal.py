"""The table that a run ends with on the terminal."""

from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.protocol import protocol_lines
from specbench.results.report import Summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNKNOWN = "–"
CPU_NOTE = "A CPU run checks correctness and acceptance; speed is to be read in results/h200/."
FIGURES = ("decode\ntok/s", "speed-up\n[95 %]", "over\nvLLM", "AL", "select.\n%")
_STYLES = {"PASSED": "green", "LOSSY": "bold red", None: "yellow"}


def print_summary(summary: Summary, console: "Console") -> None:
    """Print protocol, table and warnings."""
    for line in protocol_lines(summary.run):
        console.print(line, markup=False, highlight=False)
    if summary.run.config.get("device") == "cpu":
        console.print(CPU_NOTE, style="bold", markup=False, highlight=False)
    console.print(build_table(summary.rows))
    for line in summary.warnings:
        console.print(f"warning: {line}", style="yellow", markup=False, highlight=False)


def build_table(rows: list[Row]) -> "Table":
    """Arms by datasets; what is unknown is a dash. A single dataset stands in the title."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    several = len(datasets) > 1
    table = Table(
        title=None if several or not datasets else Text(datasets[0]),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
        pad_edge=False,
    )
    if several:
        table.add_column("dataset", overflow="fold")
    table.add_column("arm", overflow="fold")
    table.add_column("status")
    for name in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lossless", overflow="fold")
    previous = None
    for row in rows:
        first = row["dataset"] != previous
        if first and previous is not None:
            table.add_section()
        status = row["status"]
        cells: list[Text | str] = [
            Text(row["arm"]),
            Text(status or "unfinished", style=_STYLES.get(status, "red")),
            _marked(row, "output_throughput", ".1f"),
            _with_interval(row, "speedup_over_autoregressive"),
            _with_interval(row, "speedup_over_vllm"),
            _marked(row, "spec_decode_acceptance_length", ".2f"),
            _number(row["selection_percent"], ".1f"),
            Text(_verdict(row)),
        ]
        if several:
            cells.insert(0, Text(row["dataset"] if first else ""))
        table.add_row(*cells)
        previous = row["dataset"]
    return table


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _marked(row: Row, key: str, form: str) -> str:
    """The figure, with an asterisk where every output of the dataset loops."""
    mark = "*" if row["all_degenerate"] and row[key] is not None else ""
    return _number(row[key], form) + mark


def _with_interval(row: Row, key: str) -> str:
    value, low, high = (row[key + suffix] for suffix in ("", "_low", "_high"))
    if value is None or low is None or high is None:
        return _number(value, ".2f")
    return f"{value:.2f} [{low:.2f}–{high:.2f}]"


def _verdict(row: Row) -> str:
    if row["method"] == "autoregressive" and row["lossless"] is None:
        return "reference"
    return row["lossless"] or UNKNOWN
