"""The table of a report, one for every form it takes: terminal, CSV, Markdown, LaTeX, page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specbench.results.metrics import Row
from specbench.results.plain import markdown, one_line

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "–"
Kind = Literal["text", "number", "interval"]


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes
    ----------
    key : str
        Of the rows; an interval also has ``<key>_low`` and ``<key>_high``.
    title : str
        The heading, unit included.
    kind : str
        ``text``, ``number``, or ``interval``: a number with its 95 % interval.
    form : str
        How a number is written.
    marked : bool
        Whether looping outputs inflate it: then an asterisk follows where nothing else remained.
    scale : float
        What the shown number is multiplied by, for a unit other than that of the rows.
    """

    key: str
    title: str
    kind: Kind = "text"
    form: str = ".2f"
    marked: bool = False
    scale: float = 1.0


# pandas escapes the cells, not the caption
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)

STATUS = Column("status", "status")
COLUMNS = (
    Column("workload", "dataset"),
    Column("series", "arm"),
    STATUS,
    Column("output_throughput", "decode tok/s", "number", ".1f", marked=True),
    Column("speedup_over_autoregressive", "speed-up [95 %]", "interval"),
    Column("speedup_over_vllm", "over vLLM", "interval"),
    Column("spec_decode_acceptance_length", "AL", "number", marked=True),
    Column("selection_percent", "overhead %", "number", ".1f"),
    Column("lossless", "lossless"),
)


def cell_text(row: Row, column: Column) -> str:
    """What stands in the table; an unknown figure is a dash, never 0."""
    value = row[column.key]
    if column is STATUS:
        return str(value or "unfinished")
    if column.key == "lossless" and value is None and row["method"] == "autoregressive":
        return "reference"
    if value is None:
        return UNKNOWN
    if column.kind == "text":
        return one_line(str(value))
    text = format(value if column.scale == 1 else column.scale * value, column.form)
    if column.marked and row["all_degenerate"]:
        text += "*"
    low, high = row.get(f"{column.key}_low"), row.get(f"{column.key}_high")
    if column.kind == "interval" and low is not None and high is not None:
        text += f" [{low:{column.form}}–{high:{column.form}}]"
    return text


def text_frame(rows: Sequence[Row]) -> "pd.DataFrame":
    """The table as it is read: titles and formatted cells."""
    import pandas as pd

    cells = [{column.title: cell_text(row, column) for column in COLUMNS} for row in rows]
    return pd.DataFrame(cells, columns=[column.title for column in COLUMNS], dtype=object)


def value_frame(rows: Sequence[Row]) -> "pd.DataFrame":
    """The table as it is computed with: the rows' keys, bare figures, unknown left empty."""
    import pandas as pd

    keys = [
        key
        for column in COLUMNS
        for key in (column.key, *_bounds(column))
        if key not in ("workload", "series")
    ]
    run = ["run"] if any(row["run"] for row in rows) else []
    keys = [*run, "dataset", "arm", "batch_size", "max_prompt_tokens", *keys]
    return pd.DataFrame(
        [{key: row[key] for key in keys} for row in rows], columns=keys, dtype=object
    )


def to_markdown(rows: Sequence[Row], header: Sequence[str], notes: Sequence[str]) -> str:
    """The table in Markdown under its protocol, what a reader must know below it."""
    frame = text_frame(rows)
    for column in COLUMNS:
        if column.kind == "text":
            frame[column.title] = [markdown(text) for text in frame[column.title]]
    align = ["left" if column.kind == "text" else "right" for column in COLUMNS]
    table = frame.to_markdown(index=False, disable_numparse=True, colalign=align if rows else None)
    return "\n".join([*(f"{markdown(line)}  " for line in header), "", table, "", *_bullets(notes)])


def to_latex(rows: Sequence[Row], header: Sequence[str]) -> str:
    r"""The table as a LaTeX float, for ``\usepackage{booktabs}``; its protocol is the caption."""
    align = "".join("l" if column.kind == "text" else "r" for column in COLUMNS)
    return text_frame(rows).to_latex(
        index=False,
        escape=True,
        column_format=align,
        position="t",
        caption=". ".join(header).translate(_LATEX) + ".",
        label="tab:specbench",
    )


def _bounds(column: Column) -> tuple[str, ...]:
    throughput = column.key == "output_throughput"
    if column.kind == "interval" or throughput:
        return f"{column.key}_low", f"{column.key}_high"
    return ()


def _bullets(notes: Sequence[str]) -> list[str]:
    return [f"- {markdown(note)}" for note in notes] + ([""] if notes else [])
