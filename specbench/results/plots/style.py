"""What all plots share: colours, figures, captions, and bytes that depend on nothing else."""

import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from specbench.results.metrics import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which the colour-blind can tell apart; the yellow is left out, as it
# vanishes on white. Hatches, line styles and markers tell apart in print what colours do not.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
HATCHES = ("", "//", "..", "xx")
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CAPTION_SIZE = 7
_CHARACTERS_AN_INCH = 16  # of a caption
_SETTINGS = {
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and set anew
    "text.parse_math": False,  # names come from data, and may hold dollar signs
}


def render(
    name: str, draw: "Callable[[], tuple[Figure, str] | None]", caption: Sequence[str]
) -> dict[str, bytes]:
    """``<name>.png`` and ``<name>.svg`` of what `draw` returns with its note, or nothing."""
    import matplotlib

    # ids in an SVG depend on the salt alone, so that equal plots are equal files
    settings: Any = _SETTINGS | {"svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        drawn = draw()
        if drawn is None:
            return {}
        figure, note = drawn
        width = int(figure.get_figwidth() * _CHARACTERS_AN_INCH)
        lines = [part for line in (note, *caption) for part in textwrap.wrap(line, width)]
        figure.supxlabel("\n".join(lines), fontsize=_CAPTION_SIZE, color="#444444")
        png = _bytes(figure, "png", {"Software": None})
        figure.set_layout_engine("none")  # both files have one layout
        svg = _bytes(figure, "svg", {"Date": None, "Creator": None, "Title": name})
        return {f"{name}.png": png, f"{name}.svg": svg}


def new_figure(panels: int, width: float = 6.4, height: float = 5.0) -> "tuple[Figure, list[Axes]]":
    """Panels side by side, each `width` by `height` inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(width * panels, height), dpi=120, layout=layout)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def colour(names: Sequence[str], name: str) -> str:
    """The colour of one of `names`, the same in every plot that gets the same names."""
    return COLOURS[names.index(name) % len(COLOURS)]


def hatch(names: Sequence[str], name: str) -> str:
    """Tells apart the bars of names that share a colour."""
    return HATCHES[names.index(name) // len(COLOURS) % len(HATCHES)]


def note_inside(axes: "Axes", text: str) -> None:
    """Text in the middle of an empty panel."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def legend_below(axes: "Axes", handles: Sequence[Any]) -> None:
    """A legend under the panel, where it hides nothing."""
    if handles:
        axes.legend(
            handles=handles,
            fontsize=8,
            loc="upper center",
            ncols=min(len(handles), 3),
            bbox_to_anchor=(0.5, -0.17 if axes.get_xlabel() else -0.1),
            handlelength=3,
            frameon=False,
        )


def unique(rows: Iterable[Row], key: str) -> list[str]:
    """The values under `key`, each once, in order."""
    return list(dict.fromkeys(row[key] for row in rows))


def short(value: float) -> str:
    """Two decimals, three digits of what is larger, and no decimals from a thousand on."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def reason(row: Row) -> str:
    """Why a row lacks a figure."""
    return "unknown" if row["status"] == "PASSED" else row["status"] or "unfinished"


def _bytes(figure: "Figure", kind: str, metadata: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()
