"""The page's tables: cells with the text that is shown and the value that is sorted by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.results.metrics import Row
from specbench.results.overhead import PARTS
from specbench.results.report import Summary
from specbench.results.summary_table import COLUMNS, STATUS, Column, cell_text

NAMES = COLUMNS[:2]
ACCEPTANCE = (
    *NAMES,
    Column("gamma", "gamma", "number", "d"),
    Column("kept_ratio", "kept ratio", "number", "g"),
    Column("spec_decode_acceptance_length", "AL, pooled", "number", marked=True),
    Column("mean_request_acceptance_length", "AL, mean of requests", "number", marked=True),
    Column("spec_decode_acceptance_rate", "acceptance rate", "number"),
    Column("num_verify_steps", "verify steps", "number", ",d"),
)
OVERHEAD = (
    *NAMES,
    Column("variant", "variant"),
    Column("batch", "batch", "number", "d"),
    Column("context", "context", "number", ",d"),
    Column("gamma", "gamma", "number", "d"),
    Column("kept_ratio", "kept ratio", "number", "g"),
    Column("spec_decode_acceptance_length", "AL", "number", marked=True),
    *(Column(f"{part}_ms", f"{part} ms", "number", ".3g") for part in PARTS),
    Column("iteration_ms", "iteration ms", "number", ",.3f"),
    Column("selection_percent", "selection %", "number", ".2f"),
    Column("selection_trace_ms", "selection by trace ms", "number", ".3g"),
    Column("break_even_al", "break-even AL", "number"),
    Column("overhead_source", "source"),
)
SERVING = (
    *NAMES,
    Column("mean_ttft_ms", "mean TTFT ms", "number", ",.1f"),
    Column("mean_tpot_ms", "mean TPOT ms", "number", ",.2f"),
    Column("mean_itl_ms", "mean step ITL ms", "number", ",.2f"),
    Column("prefill_throughput", "prefill tok/s", "number", ",.0f"),
    Column("e2e_output_throughput", "end-to-end tok/s", "number", ",.1f"),
    Column("peak_memory_bytes", "peak memory GiB", "number", ".2f", scale=2**-30),
    Column("graph_mode", "graphs"),
    Column("attention_backend", "attention"),
)
SCORES = (
    *NAMES,
    Column("score_name", "measure"),
    Column("score", "score [95 %]", "interval", ".3f"),
    Column("score_prompts", "n", "number", "d"),
    Column("score_cut", "cut at the limit", "number", ".0%"),
)
DATA = (
    Column("name", "dataset"),
    Column("source", "source"),
    Column("revision", "revision"),
    Column("prompts", "prompts", "number", "d"),
    Column("truncated", "middle cut out", "number", "d"),
    Column("context_len", "context limit", "number", ",d"),
    Column("max_new_tokens", "new tokens, at most", "number", ",d"),
    Column("token_ids_sha256", "sha256 of the token ids"),
)


@dataclass(frozen=True)
class Cell:
    """What is shown, what is sorted by, and how it looks."""

    text: str
    value: str
    classes: str


@dataclass(frozen=True)
class Heading:
    """The head of a column."""

    title: str
    numeric: bool


@dataclass(frozen=True)
class PageTable:
    """One table."""

    title: str
    columns: list[Heading]
    rows: list[list[Cell]]


def page_tables(summary: Summary) -> list[PageTable]:
    """The tables in the page's order, the main one first; empty ones are left out."""
    rows = summary.rows
    drafting = [row for row in rows if row["gamma"]]
    tables = [
        page_table("Speed, acceptance, losslessness", COLUMNS, rows),
        page_table("Acceptance", ACCEPTANCE, drafting),
        page_table("Time of one iteration", OVERHEAD, [r for r in rows if r["iteration_ms"]]),
        page_table(
            "Serving times and memory", SERVING, [r for r in rows if r["status"] == "PASSED"]
        ),
        page_table("Task scores", SCORES, [row for row in rows if row["score"] is not None]),
        page_table("Data", DATA, _datasets(summary)),
    ]
    return [table for place, table in enumerate(tables) if table.rows or place == 0]


def _datasets(summary: Summary) -> list[Row]:
    entries = {
        (entry.name, entry.token_ids_sha256): {
            **entry.model_dump(exclude={"prompts"}),
            "prompts": len(entry.prompts),
            "truncated": sum(prompt.truncated for prompt in entry.prompts),
            "method": "",
            "all_degenerate": False,
        }
        for run in summary.runs
        for entry in run.datasets
    }
    return list(entries.values())


def page_table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> PageTable:
    """A table of `rows` in the form that the template shows."""
    return PageTable(
        title=title,
        columns=[Heading(column.title, column.kind != "text") for column in columns],
        rows=[[_cell(row, column) for column in columns] for row in rows],
    )


def _cell(row: Row, column: Column) -> Cell:
    text = cell_text(row, column)
    value: Any = row[column.key]
    classes = "" if column.kind == "text" else "number"
    if column is STATUS:
        classes = "PASSED" if text == "PASSED" else "failed"
    if column.kind == "text":
        value = text
    return Cell(text=text, value="" if value is None else str(value), classes=classes)
