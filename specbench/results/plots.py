"""Plots of a run as PNG: throughput, speed-up, acceptance."""

import io
from typing import TYPE_CHECKING

from specbench.results.metrics import Row
from specbench.results.protocol import protocol_lines
from specbench.results.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which the colour-blind can tell apart; the yellow is left out, as it
# vanishes on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
HATCHES = ("", "//", "..", "xx")
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
AL = "spec_decode_acceptance_length"
POSITIONS = "spec_decode_per_position_acceptance_rates"


def draw_plots(run: RunRecord, rows: list[Row]) -> dict[str, bytes]:
    """The PNG files by name: throughput, speedup, acceptance.

    Parameters
    ----------
    run : RunRecord
        For the protocol in each caption.
    rows : list of dict
        A row an arm and dataset, as `tables.build_rows` makes them. A figure that is None leaves a
        gap with the reason in it.
    """
    return {
        "throughput": _throughput(run, rows),
        "speedup": _speedup(run, rows),
        "acceptance": _acceptance(run, rows),
    }


def _throughput(run: RunRecord, rows: list[Row]) -> bytes:
    figure, (axes,) = _figure(1, rows)
    _bars(axes, rows, rows, "output_throughput")
    axes.set_title("Decode throughput")
    axes.set_ylabel("tokens/s")
    return _png(figure, run, "bars: median over repeats; whiskers: 95 % bootstrap interval")


def _speedup(run: RunRecord, rows: list[Row]) -> bytes:
    bases = ["speedup_over_autoregressive"]
    if any(row["speedup_over_vllm"] is not None for row in rows):
        bases.append("speedup_over_vllm")
    figure, panels = _figure(len(bases), rows)
    for axes, key in zip(panels, bases, strict=True):
        own = key.removeprefix("speedup_over_")
        shown = [row for row in rows if own not in (row["arm"], row["method"])]
        _bars(axes, rows, shown, key)
        axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
        axes.set_title(f"Speed-up over {own}")
        axes.set_ylabel("ratio of decode throughputs (×)")
    return _png(figure, run, "median of paired repeats; whiskers: 95 % bootstrap interval")


def _acceptance(run: RunRecord, rows: list[Row]) -> bytes:
    figure, (lengths, positions) = _figure(2, rows)
    shown = [row for row in rows if row["gamma"]]
    _bars(lengths, rows, shown, AL)
    lengths.axhline(1.0, color="black", linewidth=1, linestyle="--")
    lengths.set_title("Acceptance length")
    lengths.set_ylabel("tokens committed a verify step, bonus included")
    arms, datasets = _unique(rows, "arm"), _unique(rows, "dataset")
    for row in shown:
        rates = row[POSITIONS]
        if not rates:
            continue
        arm, dataset = arms.index(row["arm"]), datasets.index(row["dataset"])
        positions.plot(
            range(1, len(rates) + 1),
            [float("nan") if rate is None else rate for rate in rates],
            color=COLOURS[arm % len(COLOURS)],
            marker=MARKERS[arm % len(MARKERS)],
            linestyle=LINES[dataset % len(LINES)],
            label=f"{row['arm']}, {row['dataset']}",
        )
    positions.set_title("Acceptance by draft position")
    positions.set_xlabel("position of the draft token")
    positions.set_ylabel("accepted, share of the steps that drafted it")
    positions.set_ylim(-0.03, 1.05)
    positions.grid(alpha=0.3)
    if positions.lines:
        longest = max(len(row[POSITIONS] or []) for row in shown)
        positions.set_xticks(range(1, longest + 1, max(1, longest // 8)))
        positions.legend(fontsize=8)
    else:
        _note(positions, "no acceptance on record")
    return _png(figure, run, "pooled over all verify steps of all repeats")


def _bars(axes: "Axes", rows: list[Row], shown: list[Row], key: str) -> None:
    """Bars of `key`, a group a dataset; a place without a figure says its status."""
    arms, datasets = _unique(shown, "arm"), _unique(shown, "dataset")
    colours = _unique(rows, "arm")
    width = min(0.8 / max(len(arms), 1), 0.3)
    for row in shown:
        arm = arms.index(row["arm"])
        colour = colours.index(row["arm"])
        x = datasets.index(row["dataset"]) + (arm - (len(arms) - 1) / 2) * width
        value = row[key]
        if value is None:
            reason = "unknown" if row["status"] == "PASSED" else row["status"] or "unfinished"
            axes.text(x, 0, f" {reason}", rotation=90, ha="center", va="bottom", fontsize=8)
            continue
        axes.bar(
            x,
            value,
            width * 0.92,
            color=COLOURS[colour % len(COLOURS)],
            hatch=HATCHES[colour // len(COLOURS) % len(HATCHES)],
            alpha=0.5 if row["status"] == "LOSSY" else 1.0,
        )
        low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
        if low is not None and high is not None:
            axes.vlines(x, low, high, color="black", linewidth=1.2)
        text = f"{value:.3g}" + ("\nLOSSY" if row["status"] == "LOSSY" else "")
        axes.annotate(
            text,
            (x, max(value, high or value)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_xlim(-0.6, max(len(datasets), 1) - 0.4)
    axes.set_xticks(range(len(datasets)), datasets)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if not shown:
        _note(axes, "no arm to show")
    _legend(axes, colours, arms)


def _legend(axes: "Axes", colours: list[str], arms: list[str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(
            facecolor=COLOURS[colours.index(arm) % len(COLOURS)],
            hatch=HATCHES[colours.index(arm) // len(COLOURS) % len(HATCHES)],
            label=arm,
        )
        for arm in arms
    ]
    if handles:
        axes.legend(
            handles=handles,
            fontsize=8,
            loc="upper center",
            ncols=min(len(handles), 4),
            bbox_to_anchor=(0.5, -0.1),
            frameon=False,
        )


def _figure(panels: int, rows: list[Row]) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = max(6.4, 0.6 * len(rows))
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(width * panels, 5.0), dpi=120, layout=layout)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _png(figure: "Figure", run: RunRecord, note: str) -> bytes:
    caption = "\n".join([*protocol_lines(run), note])
    figure.supxlabel(caption, fontsize=7, color="#444444")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _note(axes: "Axes", text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def _unique(rows: list[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))
