"""The choices of all loads: a table, a CSV, a heat map, and the schedule that a run takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.schedule import Entry, Schedule
from specbench.config import TuneConfig
from specbench.results.plain import spreadsheet
from specbench.results.plots.heatmap import draw_panels
from specbench.results.plots.style import render
from specbench.results.report import write_file
from specbench.tune.load import Outcome
from specbench.tune.page import write_loads_page
from specbench.tune.report import SCHEDULE, ratio_text
from specbench.tune.space import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

LOADS = "loads.csv"


def write_table(
    folder: Path,
    config: TuneConfig,
    space: Space,
    outcomes: Sequence[Outcome],
    console: "Console",
) -> None:
    """Write ``schedule.yaml``, ``loads.csv`` and ``heatmap`` into `folder`, and print the table."""
    found = [outcome for outcome in outcomes if outcome.setting is not None]
    rows = [_row(outcome, space) for outcome in outcomes]
    write_loads(folder, rows)
    _print(console, space, outcomes, rows)
    if not found:
        return
    schedule = Schedule(
        method=space.method.name,
        settings=config.method_settings(),
        loads=tuple(Entry(o.batch, o.context, o.options) for o in found),
    )
    schedule.write(folder / SCHEDULE)
    plots = render(
        "heatmap", lambda: _heatmap(space, found, config), ["Medians, held-out prompts."]
    )
    for name, content in plots.items():
        write_file(folder / name, content)
    finals = {outcome.name: outcome.final for outcome in found}
    write_loads_page(folder, space, rows, finals, plots)


def write_loads(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write ``loads.csv``; unknown is an empty field."""
    import pandas as pd

    frame = pd.DataFrame(rows, dtype=object).map(spreadsheet)
    return write_file(folder / LOADS, frame.to_csv(index=False).encode())


def _row(outcome: Outcome, space: Space) -> dict[str, Any]:
    setting = outcome.setting
    row: dict[str, Any] = {
        "load": outcome.name,
        "choice": space.show(setting) if setting else None,
        "batch": outcome.batch,
        "context_len": outcome.context_len,
        "mean_prompt_tokens": outcome.context,
        space.budget or "budget": setting.ratio if setting and setting.gamma != 0 else None,
        space.length: setting.gamma if setting else None,
        "output_throughput": outcome.throughput,
    }
    for name, kind in (("default", "-default"), ("autoregressive", "autoregressive")):
        ratio = outcome.over(kind)
        for part in ("value", "low", "high"):
            suffix = "" if part == "value" else f"_{part}"
            row[f"over_{name}{suffix}"] = getattr(ratio, part) if ratio else None
    return row


def _print(
    console: "Console", space: Space, outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]
) -> None:
    from rich.table import Table

    table = Table(title=f"{space.method.name} by load", title_justify="left", box=None)
    for heading in ("batch", "context"):
        table.add_column(heading, justify="right")
    table.add_column("choice")
    for heading in ("decode tok/s", "over default [95 %]", "over autoregressive [95 %]"):
        table.add_column(heading, justify="right")
    for outcome, row in zip(outcomes, rows, strict=True):
        value = row["output_throughput"]
        compared = [outcome.over("-default"), outcome.over("autoregressive")]
        table.add_row(
            str(outcome.batch),
            f"{outcome.context:,}",
            row["choice"] or "none",
            "–" if value is None else f"{value:,.1f}",
            *("–" if ratio is None else ratio_text(ratio) for ratio in compared),
        )
    console.print(table)


def _heatmap(
    space: Space, outcomes: Sequence[Outcome], config: TuneConfig
) -> "tuple[Figure, str] | None":
    """The choice of each load and its speed-up over autoregressive decoding."""
    rows = []
    for outcome in outcomes:
        ratio = outcome.over("autoregressive")
        assert outcome.setting is not None, "left out otherwise"
        choice = space.show(outcome.setting).replace(", ", "\n")
        value = ratio.value if ratio else None
        rows.append(
            {
                "batch": outcome.batch,
                "context": outcome.context_len,
                "speedup_over_autoregressive": value,
                "status": "PASSED",
                "label": choice if value is None else f"{choice}\n{value:.2f} ×",
            }
        )
    panels = [(f"{space.method.name}, {Path(config.dataset[0]).name}", rows)]
    return draw_panels(panels), "Each load's choice, and its speed-up over its own baseline."
