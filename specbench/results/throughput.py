"""Decode throughput and the speed-up of one arm over another."""

from collections.abc import Callable

import numpy as np

from specbench.results import stats
from specbench.results.cells import Cell, Group
from specbench.results.metrics import Metric, Row


class DecodeThroughput(Metric):
    """Committed tokens of the full batch per second of decode, median over repeats.

    Only steps in which the batch was full count. A request bears 1/running of a step's seconds, so
    that leaving a degenerate request out takes its share of the time along with its tokens.
    """

    columns = ("output_throughput", "output_throughput_low", "output_throughput_high")

    def applies(self, cell: Cell) -> bool:
        return cell.shows_throughput

    def compute(self, cell: Cell, group: Group) -> Row:
        return _interval(self.columns, stats.throughput(*decode_sums(cell)))


class SpeedUp(Metric):
    """Decode throughput over that of another arm, paired by repeat and prompt.

    Parameters
    ----------
    suffix : str
        Names the columns: ``speedup_<suffix>``.
    find : callable
        The arm to compare with, or None where the run has none.
    """

    def __init__(self, suffix: str, find: Callable[[Group], Cell | None]) -> None:
        name = f"speedup_{suffix}"
        self.columns = (name, f"{name}_low", f"{name}_high")
        self._find = find

    def applies(self, cell: Cell) -> bool:
        return cell.shows_throughput

    def compute(self, cell: Cell, group: Group) -> Row:
        base = self._find(group)
        if base is None or not base.shows_throughput:
            return {}
        estimate = stats.speedup(*decode_sums(cell), *decode_sums(base))
        if base is cell and estimate.value is not None:
            estimate = stats.Estimate(1.0)
        return _interval(self.columns, estimate)


def decode_sums(cell: Cell) -> tuple[stats.Array, stats.Array]:
    """Tokens and seconds of the full steps of healthy requests, each `[repeats, prompts]`."""
    place = {prompt.index: column for column, prompt in enumerate(cell.dataset.prompts)}
    tokens = np.zeros((cell.repeats, len(place)))
    seconds = np.zeros_like(tokens)
    for record in cell.healthy:
        where = record.repeat, place[record.index]
        _, seconds[where], tokens[where] = cell.window(record)
    return tokens, seconds


def _interval(columns: tuple[str, ...], estimate: stats.Estimate) -> Row:
    figures = (estimate.value, estimate.low, estimate.high)
    return dict(zip(columns, figures, strict=True))


THROUGHPUT: tuple[Metric, ...] = (
    DecodeThroughput(),
    SpeedUp("over_autoregressive", lambda group: group.autoregressive),
    SpeedUp("over_vllm", lambda group: group.vllm),
)
