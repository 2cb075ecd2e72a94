"""Plots of an analysis, each as PNG and SVG; readable in print and by the colour-blind."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.results.plots.style import COLOURS, LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]

_SHIFT = 0.08  # of whiskers beside each other
_MOST_TICKS = 16


def draw_kernels(rows: Rows, caption: Sequence[str]) -> dict[str, bytes]:
    """Time of one layer's attention against the query rows, a line for what is collected."""
    figure, axes = _figure()
    names = list(dict.fromkeys(row["collecting"] for row in rows))
    for number, name in enumerate(names):
        mine = [row for row in rows if row["collecting"] == name]
        label = "without collection" if name == "none" else f"collecting {name} rows"
        _line(axes, mine, ("query_rows", "median_us", "low_us", "high_us"), number, label)
    axes.set_title("Attention kernel against query rows")
    axes.set_xlabel("query rows of a request")
    axes.set_ylabel("time of one layer, whole batch (µs)")
    axes.set_ylim(bottom=0)
    _ticks(axes, max(row["query_rows"] for row in rows))
    axes.legend(fontsize=9)
    timings = rows[0]["timings"]
    return _files(figure, [*caption, f"median of {timings} timings; whiskers: lowest to highest"])


def draw_overlap(rows: Rows, caption: Sequence[str]) -> dict[str, bytes]:
    """Mean overlap of the sets of two rows against their distance; the band spans the layers."""
    figure, axes = _figure()
    known = [row for row in rows if row["overlap"] is not None]
    for number, kind in enumerate(dict.fromkeys(row["rows"] for row in known)):
        mine = [row for row in known if row["rows"] == kind]
        label = "all verified rows" if kind == "all" else f"{kind} rows"
        places = [row["distance"] for row in mine]
        style = _style(number)
        axes.plot(places, [row["overlap"] for row in mine], label=label, **style)
        if kind == "all":
            low, high = ([row[name] for row in mine] for name in ("low", "high"))
            axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
            chance = [row["chance"] for row in mine]
            axes.plot(places, chance, color="black", linestyle=":", label="random sets")
    axes.set_title("Sets chosen by single rows of a verification")
    axes.set_xlabel("distance of the rows (draft positions)")
    axes.set_ylabel("mean overlap of two sets (share of a set)")
    axes.set_ylim(0, 1.03)
    _ticks(axes, max(row["distance"] for row in rows))
    axes.legend(fontsize=9)
    return _files(figure, [*caption, "lines: mean over layers, heads and pairs; band: layers"])


def draw_acceptance(rows: Rows, caption: Sequence[str]) -> dict[str, bytes]:
    """Conditional acceptance by draft position, a line a source of the sets."""
    figure, axes = _figure()
    names = list(dict.fromkeys(row["source"] for row in rows))
    for number, name in enumerate(names):
        mine = [row for row in rows if row["source"] == name]
        length = mine[0]["spec_decode_acceptance_length"]
        shift = (number - (len(names) - 1) / 2) * _SHIFT
        label = f"{name}: AL {length:.2f}"
        columns = ("position", "conditional_acceptance", "low", "high")
        known = [row for row in mine if row["conditional_acceptance"] is not None]
        _line(axes, known, columns, number, label, shift)
    axes.set_title("Acceptance by the source of the sets")
    axes.set_xlabel("position of the draft token")
    axes.set_ylabel("accepted, share of the steps that accepted all before")
    axes.set_ylim(-0.03, 1.05)
    _ticks(axes, max(row["position"] for row in rows))
    axes.legend(fontsize=9, title="sets chosen by")
    return _files(figure, [*caption, "pooled over all verify steps; whiskers: 95 % interval"])


def _line(
    axes: "Axes",
    rows: Rows,
    columns: tuple[str, str, str, str],
    number: int,
    label: str,
    shift: float = 0.0,
) -> None:
    """Points with whiskers from the columns' place, value, lowest and highest."""
    place, value, low, high = ([row[name] for row in rows] for name in columns)
    # a mean of equal values may miss them by rounding
    below = [max(v - bound, 0.0) for v, bound in zip(value, low, strict=True)]
    above = [max(bound - v, 0.0) for v, bound in zip(value, high, strict=True)]
    places = [x + shift for x in place]
    axes.errorbar(
        places, value, yerr=[below, above], label=label, capsize=2, elinewidth=1, **_style(number)
    )


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
        "markersize": 5,
    }


def _ticks(axes: "Axes", last: int) -> None:
    axes.set_xticks(range(1, last + 1, -(-last // _MOST_TICKS)))
    axes.set_xlim(0.5, last + 0.5)
    axes.grid(alpha=0.3)


def _figure() -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), dpi=150, layout="constrained")
    return figure, figure.add_subplot()


def _files(figure: "Figure", caption: Sequence[str]) -> dict[str, bytes]:
    figure.supxlabel("\n".join(caption), fontsize=7, color="#444444")
    files = {}
    for suffix, metadata in (("png", None), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, metadata=metadata)
        files[suffix] = buffer.getvalue()
    return files
