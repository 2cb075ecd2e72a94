"""Where an iteration's time goes, as stacked bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.overhead import PARTS
from specbench.results.plots.style import COLOURS, HATCHES, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_split(rows: Sequence[Row]) -> "tuple[Figure, str] | None":
    """A horizontal bar an arm and workload, in milliseconds; None where no split is known."""
    from matplotlib.patches import Patch

    shown = [row for row in rows if row["draft_ms"] is not None and _length(row) > 0]
    if not shown:
        return None
    figure, (axes,) = new_figure(1, 7.6, max(3.2, 1.9 + 0.34 * len(shown)))
    several = len({row["workload"] for row in shown}) > 1
    for place, row in enumerate(shown):
        left = 0.0
        for part, fill, mark in zip(PARTS, COLOURS, (*HATCHES, "\\\\"), strict=False):
            width = row[f"{part}_ms"]
            axes.barh(place, width, 0.7, left, color=fill, hatch=mark, edgecolor="white")
            left += width
        share = row["selection_percent"]
        text = f" {left:.3g} ms" + (f", selection {share:.1f} %" if share is not None else "")
        axes.text(left, place, text, va="center", fontsize=8)
    names = [f"{row['series']}, {row['workload']}" if several else row["series"] for row in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(map(_length, shown)))
    axes.set_xlabel("ms an iteration")
    axes.set_title("Time of one iteration" + ("" if several else f", {shown[0]['workload']}"))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    handles = [
        Patch(facecolor=fill, hatch=mark, edgecolor="white", label=part)
        for part, fill, mark in zip(PARTS, COLOURS, (*HATCHES, "\\\\"), strict=False)
    ]
    axes.legend(handles=handles, fontsize=8, loc="lower right", framealpha=0.9)
    if len(shown) > 3:
        axes.get_legend().remove()  # type: ignore[union-attr]
        legend_below(axes, handles)
    sources = sorted({row["overhead_source"] for row in shown})
    return figure, f"Mean over iterations with the batch full; from {' and '.join(sources)}."


def _length(row: Row) -> float:
    return sum(row[f"{part}_ms"] for part in PARTS)
