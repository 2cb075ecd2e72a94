"""Bars with intervals: decode throughput, and speed-up over each baseline."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.plots.style import (
    colour,
    hatch,
    legend_below,
    new_figure,
    note_inside,
    reason,
    short,
    unique,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_throughput(rows: Sequence[Row]) -> "tuple[Figure, str]":
    """Tokens per second of every arm."""
    figure, (axes,) = new_figure(1, bar_width(rows))
    draw_bars(axes, rows, rows, "output_throughput")
    axes.set_title("Decode throughput")
    axes.set_ylabel("tokens/s")
    return figure, "Bars: median over repeats; whiskers: 95 % bootstrap interval."


def draw_speedup(rows: Sequence[Row]) -> "tuple[Figure, str]":
    """Ratios over autoregressive decoding and, where it ran, over vLLM."""
    bases = ["speedup_over_autoregressive"]
    if any(row["speedup_over_vllm"] is not None for row in rows):
        bases.append("speedup_over_vllm")
    figure, panels = new_figure(len(bases), bar_width(rows))
    for axes, key in zip(panels, bases, strict=True):
        own = key.removeprefix("speedup_over_")
        shown = [row for row in rows if own not in (row["arm"], row["method"])]
        draw_bars(axes, rows, shown, key)
        axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
        axes.set_title(f"Speed-up over {own}")
        axes.set_ylabel("ratio of decode throughputs (×)")
    return figure, "Bars: median of paired repeats; whiskers: 95 % bootstrap interval."


def bar_width(rows: Sequence[Row]) -> float:
    """Inches of a panel in which each row has a bar."""
    return max(6.4, 0.55 * len(rows))


def draw_bars(axes: "Axes", rows: Sequence[Row], shown: Sequence[Row], key: str) -> None:
    """Bars of `key`, a group a workload; a place without a figure says why."""
    from matplotlib.patches import Patch

    series, workloads = unique(shown, "series"), unique(shown, "workload")
    colours = unique(rows, "series")
    width = min(0.8 / max(len(series), 1), 0.3)
    for row in shown:
        place = series.index(row["series"])
        x = workloads.index(row["workload"]) + (place - (len(series) - 1) / 2) * width
        value = row[key]
        if value is None:
            axes.text(x, 0, f" {reason(row)}", rotation=90, ha="center", va="bottom", fontsize=8)
            continue
        lossy = row["status"] == "LOSSY"
        axes.bar(
            x,
            value,
            width * 0.92,
            color=colour(colours, row["series"]),
            hatch=hatch(colours, row["series"]),
            alpha=0.5 if lossy else 1.0,
        )
        low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
        if low is not None and high is not None:
            axes.vlines(x, low, high, color="black", linewidth=1.2)
        axes.annotate(
            short(value) + ("\nLOSSY" if lossy else ""),
            (x, max(value, high or value)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_xlim(-0.6, max(len(workloads), 1) - 0.4)
    axes.set_xticks(range(len(workloads)), [name.replace(" ", "\n", 1) for name in workloads])
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if not shown:
        note_inside(axes, "no arm to show")
    legend_below(
        axes,
        [Patch(facecolor=colour(colours, s), hatch=hatch(colours, s), label=s) for s in series],
    )
