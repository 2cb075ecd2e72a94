"""Plots of a tuning as PNG and SVG: a curve a step, and throughput over both settings."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from specbench.results.plots.style import render, short
from specbench.tune.ledger import TrialRow
from specbench.tune.space import Setting, Space
from specbench.tune.trials import Rules

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVE, _CHOICE, _OTHER = "#0072B2", "#D55E00", "#999999"
_AL, _THROUGHPUT = "acceptance length (tokens/step)", "decode throughput (tok/s)"


def draw_curves(
    rows: Sequence[TrialRow],
    chosen: dict[int, Setting],
    titles: dict[int, str],
    space: Space,
    rules: Rules,
    caption: str,
) -> dict[str, bytes]:
    """The image files by name: of ``step1``, ``step2``, ``step3`` as far as there are, ``contour``.

    Each is a PNG and an SVG.
    """
    budget = space.budget or "budget"
    goal = "decode throughput" if rules.goal == "throughput" else "TPOT"
    scored = [row for row in rows if row.value is not None]
    drawn: dict[str, bytes] = {}
    for number, setting in chosen.items():
        if number == 2:
            # a step may look up what an earlier one measured
            line = [r for r in scored if r.step == 2]
            points = [(float(r.setting.gamma or 0), r.value, r.noise) for r in line]
            place, label = float(setting.gamma or 0), space.length
        else:
            line = [
                r
                for r in scored
                if (r.step == 1) == (number == 1)
                and r.setting.gamma == setting.gamma
                and r.setting.ratio
            ]
            points = [(float(r.setting.ratio or 0), r.value, r.noise) for r in line]
            place, label = float(setting.ratio or 0), budget
        value = f"{goal} ({rules.unit}), penalised median" if number > 1 else _AL
        title = f"Step {number}: {titles[number]}"
        draw = partial(_curve, points, place, label, value, title, number != 2)
        drawn |= render(f"step{number}", draw, [caption])
    if space.ratios and space.gammas:
        last = chosen[max(chosen)]
        drawn |= render("contour", partial(_contour, rows, last, budget, space.length), [caption])
    return drawn


def _curve(
    points: list[tuple[float, float | None, float | None]],
    place: float,
    label: str,
    value: str,
    title: str,
    logarithmic: bool,
) -> "tuple[Figure, str]":
    figure, axes = _figure()
    points = sorted(points)
    xs = [x for x, _, _ in points]
    ys = [y or 0.0 for _, y, _ in points]
    errors = [1.96 * (noise or 0.0) * y for (_, _, noise), y in zip(points, ys, strict=True)]
    axes.errorbar(xs, ys, yerr=errors, color=_CURVE, marker="o", capsize=2)
    at = [y for x, y in zip(xs, ys, strict=True) if x == place]
    if at:
        axes.plot([place], at[-1:], "*", color=_CHOICE, markersize=16, label=f"chosen: {place:g}")
        axes.legend()
    if logarithmic and len(xs) > 1:
        axes.set_xscale("log")
        _plain_ticks(axes, xs)
    axes.set_xlabel(label)
    axes.set_ylabel(value)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    return figure, "Whiskers: 1.96 standard errors."


def _contour(
    rows: Sequence[TrialRow], chosen: Setting, budget: str, length: str
) -> "tuple[Figure, str]":
    """Every measured throughput; filled contours where the points span an area."""
    from matplotlib.tri import Triangulation

    figure, axes = _figure()
    latest = {
        (row.setting.ratio, row.setting.gamma): row.throughput
        for row in rows
        if row.throughput is not None and row.setting.ratio
    }
    for throughput in [value for (_, gamma), value in latest.items() if gamma == 0]:
        # without drafts every ratio is the same
        latest |= {(ratio, 0): throughput for ratio, _ in latest}
    xs = [float(ratio or 0) for ratio, _ in latest]
    ys = [float(gamma or 0) for _, gamma in latest]
    values = [value or 0.0 for value in latest.values()]
    if not values:
        axes.set_title("No trial has a throughput")
        return figure, ""
    axes.set_xscale("log")
    if len(set(xs)) > 1 and len(set(ys)) > 1 and len(values) > 2:
        near = Triangulation([math.log(x) for x in xs], ys)  # neighbours as the log axis shows
        triangles = Triangulation(xs, ys, near.triangles)
        filled = axes.tricontourf(triangles, values, levels=12, cmap="viridis")
        figure.colorbar(filled, ax=axes, label=_THROUGHPUT)
    axes.plot(xs, ys, "o", color=_OTHER, markersize=4)
    for x, y, value in zip(xs, ys, values, strict=True):
        axes.annotate(short(value), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
    if chosen.ratio and chosen.gamma is not None:
        axes.plot([chosen.ratio], [chosen.gamma], "*", color=_CHOICE, markersize=16)
    _plain_ticks(axes, xs)
    axes.set_xlim(min(xs) / 1.15, max(xs) * 1.35)  # room for the labels
    axes.set_ylim(min(ys) - 0.4, max(ys) + 0.6)
    axes.set_xlabel(budget)
    axes.set_ylabel(length)
    axes.set_title("Decode throughput of all trials; the star is the choice")
    return figure, "Every point is a trial; contours between them are interpolated."


def _plain_ticks(axes: "Axes", xs: Sequence[float]) -> None:
    places = sorted(set(xs))
    axes.set_xticks(places, [f"{x:g}" for x in places], fontsize=8)
    axes.set_xticks([], minor=True)


def _figure() -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6), dpi=120, layout="constrained")
    return figure, figure.add_subplot()
