"""Plots of a report, each as PNG and SVG."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specbench.results.metrics import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plots(
    rows: Sequence[Row], contexts: Sequence[Row], caption: Sequence[str]
) -> dict[str, bytes]:
    """The image files by name, such as ``throughput.png`` and ``throughput.svg``.

    Parameters
    ----------
    rows : sequence of dict
        A row an arm and workload, as `tables.build_rows` makes them. A figure that is None leaves a
        gap with the reason in it.
    contexts : sequence of dict
        A row an arm, workload and bucket of prompt lengths, as `contexts.context_rows` makes them.
    caption : sequence of str
        The protocol, and what else must be read with every plot.

    Notes
    -----
    ``context`` is drawn where prompts fall into several buckets, ``heatmap`` where the rows have
    several batches or contexts, ``split`` where a time split is known: the others always. Equal
    records give equal bytes, as long as matplotlib is the same.
    """
    from specbench.results.plots.acceptance import draw_acceptance
    from specbench.results.plots.bars import draw_speedup, draw_throughput
    from specbench.results.plots.context import draw_context
    from specbench.results.plots.heatmap import draw_heatmap
    from specbench.results.plots.split import draw_split
    from specbench.results.plots.style import render

    drawings: dict[str, Callable[[], tuple[Figure, str] | None]] = {
        "throughput": partial(draw_throughput, rows),
        "speedup": partial(draw_speedup, rows),
        "acceptance": partial(draw_acceptance, rows),
        "split": partial(draw_split, rows),
        "context": partial(draw_context, rows, contexts),
        "heatmap": partial(draw_heatmap, rows),
    }
    files: dict[str, bytes] = {}
    for name, draw in drawings.items():
        files |= render(name, draw, caption)
    return files
