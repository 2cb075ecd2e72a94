"""Acceptance: its length as bars, and by position of the draft as curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.plots.bars import bar_width, draw_bars
from specbench.results.plots.style import (
    LINES,
    MARKERS,
    colour,
    legend_below,
    new_figure,
    note_inside,
    unique,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AL = "spec_decode_acceptance_length"
POSITIONS = "spec_decode_per_position_acceptance_rates"


def draw_acceptance(rows: Sequence[Row]) -> "tuple[Figure, str]":
    """Bars of the acceptance length, and a curve an arm and workload over the positions."""
    shown = [row for row in rows if row["gamma"]]
    figure, (lengths, positions) = new_figure(2, bar_width(rows))
    draw_bars(lengths, rows, shown, AL)
    lengths.axhline(1.0, color="black", linewidth=1, linestyle="--")
    lengths.set_title("Acceptance length")
    lengths.set_ylabel("tokens a verify step, bonus included")
    _draw_positions(positions, rows, shown)
    return figure, "Pooled over all verify steps of all repeats."


def _draw_positions(axes: "Axes", rows: Sequence[Row], shown: Sequence[Row]) -> None:
    series, workloads = unique(rows, "series"), unique(rows, "workload")
    for row in shown:
        rates = row[POSITIONS]
        if not rates:
            continue
        axes.plot(
            range(1, len(rates) + 1),
            [float("nan") if rate is None else rate for rate in rates],
            color=colour(series, row["series"]),
            marker=MARKERS[series.index(row["series"]) % len(MARKERS)],
            linestyle=LINES[workloads.index(row["workload"]) % len(LINES)],
            label=f"{row['series']}, {row['workload']}",
        )
    axes.set_title("Acceptance by draft position")
    axes.set_xlabel("position of the draft token")
    axes.set_ylabel("accepted, share of steps that drafted it")
    axes.set_ylim(-0.03, 1.05)
    axes.grid(alpha=0.3)
    if not axes.lines:
        note_inside(axes, "no acceptance on record")
        return
    longest = max(len(row[POSITIONS] or []) for row in shown)
    axes.set_xticks(range(1, longest + 1, max(1, longest // 8)))
    legend_below(axes, axes.get_lines())
