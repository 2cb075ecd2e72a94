"""Acceptance length and speed-up by the length of the prompt."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results.contexts import bucket_name
from specbench.results.metrics import Row
from specbench.results.plots.style import (
    LINES,
    MARKERS,
    colour,
    new_figure,
    unique,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("acceptance_length", "Acceptance length", "tokens a verify step, bonus included"),
    ("speedup", "Speed-up over autoregressive", "ratio of decode throughputs (×)"),
)


def draw_context(rows: Sequence[Row], contexts: Sequence[Row]) -> "tuple[Figure, str] | None":
    """A line an arm and dataset over the buckets; None where there is one bucket only."""
    places = sorted({row["bucket"] for row in contexts})
    if len(places) < 2:
        return None
    figure, panels = new_figure(len(PANELS))
    series = unique(rows, "series")
    lines = list(dict.fromkeys((row["series"], row["dataset"], row["batch"]) for row in contexts))
    kinds = list(dict.fromkeys(line[1:] for line in lines))
    several = len({batch for _, _, batch in lines}) > 1
    for axes, (key, title, label) in zip(panels, PANELS, strict=True):
        for number, (name, dataset, batch) in enumerate(lines):
            # side by side, or the intervals of a bucket would hide each other
            aside = 0.03 * (number - (len(lines) - 1) / 2)
            points = sorted(
                (
                    places.index(row["bucket"]) + aside,
                    row[key],
                    row.get(f"{key}_low"),
                    row.get(f"{key}_high"),
                )
                for row in contexts
                if (row["series"], row["dataset"], row["batch"]) == (name, dataset, batch)
                and row[key] is not None
            )
            if not points:
                continue
            drawn = colour(series, name)
            axes.plot(
                [point[0] for point in points],
                [point[1] for point in points],
                color=drawn,
                marker=MARKERS[series.index(name) % len(MARKERS)],
                linestyle=LINES[kinds.index((dataset, batch)) % len(LINES)],
                label=f"{name}, {dataset}" + (f", batch {batch}" if several else ""),
            )
            for place, _, low, high in points:
                if low is not None and high is not None:
                    axes.vlines(place, low, high, color=drawn, linewidth=1.2)
        axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
        axes.set_xticks(range(len(places)), [bucket_name(place) for place in places])
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylabel(label)
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.legend(
        handles=panels[0].get_legend_handles_labels()[0],
        loc="outside upper center",
        ncols=4,
        fontsize=8,
        handlelength=3,
        frameon=False,
    )
    return figure, (
        "Prompts by length; whiskers: 95 % bootstrap interval. The steps of a batch are shared by "
        "prompts of several lengths."
    )
