"""Speed-up over batch × context: where speculation pays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.plots.style import new_figure, reason, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

KEY = "speedup_over_autoregressive"
_LIMITS = (0.25, 4.0)


def draw_heatmap(rows: Sequence[Row]) -> "tuple[Figure, str] | None":
    """A panel an arm and dataset; None where no dataset has several batches or contexts."""
    panels = []
    for dataset in unique(rows, "dataset"):
        mine = [row for row in rows if row["dataset"] == dataset and row["gamma"]]
        cells = {(row["batch"], row["context"]) for row in mine}
        if len(cells) > 1:
            arms = unique(mine, "arm")
            panels += [
                (f"{arm}, {dataset}", [row for row in mine if row["arm"] == arm]) for arm in arms
            ]
    if not panels:
        return None
    note = "Speed-up of each batch and context over its own autoregressive arm, medians."
    return draw_panels(panels), note


def draw_panels(panels: Sequence[tuple[str, Sequence[Row]]]) -> "Figure":
    """A panel for each title and its rows, which may have a `label` to show with the colour."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    figure, axes = new_figure(len(panels), 4.6, 4.2)
    # purple below 1, orange above, white at 1: told apart by the colour-blind, and in grey by sign
    scale = ScalarMappable(LogNorm(*_LIMITS), "PuOr_r")
    for panel, (title, mine) in zip(axes, panels, strict=True):
        _draw_panel(panel, mine, scale)
        panel.set_title(title)
    bar = figure.colorbar(scale, ax=axes, extend="both", label="speed-up over autoregressive (×)")
    bar.minorticks_off()
    bar.set_ticks([0.25, 0.5, 1, 2, 4], labels=["0.25", "0.5", "1", "2", "4"])
    return figure


def _draw_panel(axes: "Axes", rows: Sequence[Row], scale: "ScalarMappable") -> None:
    from matplotlib.patches import Rectangle

    batches = sorted({row["batch"] for row in rows})
    contexts = sorted({row["context"] for row in rows})
    axes.set_facecolor("#e6e6e6")
    for row in rows:
        x, y = contexts.index(row["context"]), batches.index(row["batch"])
        value = row[KEY]
        text, ink = row.get("label") or reason(row), "black"
        if value is not None:
            fill = scale.to_rgba(value)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=fill, edgecolor="white"))
            text = row.get("label") or f"{value:.2f}"
            ink = "white" if sum(fill[:3]) < 1.2 else "black"
        axes.text(x, y, text, ha="center", va="center", color=ink)
    axes.set_xlim(-0.5, len(contexts) - 0.5)
    axes.set_ylim(-0.5, len(batches) - 0.5)
    axes.set_xticks(range(len(contexts)), [f"{context:,}" for context in contexts])
    axes.set_yticks(range(len(batches)), map(str, batches))
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("batch (requests)")
