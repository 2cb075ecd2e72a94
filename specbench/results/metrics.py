"""Figures of an arm on a dataset, a small class each, from its records alone.

Keys are those of ``vllm bench`` where it has them. Unknown is None, never 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import fmean, median, stdev
from typing import Any, ClassVar, Literal

import numpy as np

from specbench.results.cells import Cell, Group
from specbench.results.records import RequestRecord

Row = dict[str, Any]
Table = Literal["throughput", "acceptance", "overhead", "scores"]


class Metric(ABC):
    """A few columns of one table.

    Attributes
    ----------
    table : str
        The CSV that the columns belong to.
    columns : tuple of str
        Their names, always the same.
    """

    table: ClassVar[Table] = "throughput"
    columns: tuple[str, ...] = ()

    def row(self, cell: Cell, group: Group) -> Row:
        """The columns for `cell`; all None where the arm did not pass or the figure is unknown."""
        empty: Row = dict.fromkeys(self.columns)
        return empty | self.compute(cell, group) if self.applies(cell) else empty

    def applies(self, cell: Cell) -> bool:
        """Whether the arm's records can give this figure."""
        return cell.measured

    @abstractmethod
    def compute(self, cell: Cell, group: Group) -> Row:
        """What is known of the columns."""


class Counts(Metric):
    """What ran: totals over all repeats, excluded requests included.

    `duration` is the wall time in seconds from the start of each pass that prefilled its prompts
    to its last token; unknown where prefill and decode were timed in passes of their own.
    """

    columns = (
        "completed",
        "excluded_degenerate",
        "total_input_tokens",
        "total_output_tokens",
        "duration",
        "request_throughput",
    )

    def compute(self, cell: Cell, group: Group) -> Row:
        records, timed = cell.requests, prefilled(cell.requests)
        duration = _duration(timed)
        return {
            "completed": len(records),
            "excluded_degenerate": len(records) - len(cell.healthy),
            "total_input_tokens": sum(r.prompt_tokens for r in records),
            "total_output_tokens": sum(len(r.output_ids) for r in records),
            "duration": duration,
            "request_throughput": len(timed) / duration if duration else None,
        }


class Latency(Metric):
    """Mean, median, standard deviation and 99th percentile of a time over requests or steps, in ms.

    Parameters
    ----------
    name : str
        As in ``mean_<name>_ms``.
    times : callable
        The seconds that one request contributes.
    """

    def __init__(self, name: str, times: Callable[[RequestRecord], list[float]]) -> None:
        self.columns = tuple(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99"))
        self._times = times

    def compute(self, cell: Cell, group: Group) -> Row:
        values = [1e3 * t for record in cell.healthy for t in self._times(record)]
        if not values:
            return {}
        spread = stdev(values) if len(values) > 1 else None
        figures = (fmean(values), median(values), spread, float(np.percentile(values, 99)))
        return dict(zip(self.columns, figures, strict=True))


class PrefillThroughput(Metric):
    """Prompt tokens per second of prefill."""

    columns = ("prefill_throughput",)

    def compute(self, cell: Cell, group: Group) -> Row:
        records = prefilled(cell.healthy)
        seconds = sum(r.times.prefill_s for r in records)
        tokens = sum(r.prompt_tokens for r in records)
        return {"prefill_throughput": tokens / seconds if seconds > 0 else None}


class EndToEndThroughput(Metric):
    """Output tokens per second of wall time, prefill and partly filled batches included."""

    columns = ("e2e_output_throughput",)

    def applies(self, cell: Cell) -> bool:
        return cell.shows_throughput

    def compute(self, cell: Cell, group: Group) -> Row:
        records = prefilled(cell.requests)
        duration = _duration(records)
        tokens = sum(len(r.output_ids) for r in records)
        return {"e2e_output_throughput": tokens / duration if duration else None}


class Resources(Metric):
    """Mean running batch over decode time, and the highest peak memory of the passes."""

    columns = ("mean_running_batch", "peak_memory_bytes")

    def compute(self, cell: Cell, group: Group) -> Row:
        row_seconds = sum(sum(r.times.steps.step_s) for r in cell.requests)
        seconds = sum(
            step / running
            for r in cell.requests
            for step, running in zip(r.times.steps.step_s, r.times.steps.running, strict=True)
        )
        peaks = [p.peak_memory_bytes for p in cell.passes if p.peak_memory_bytes is not None]
        return {
            "mean_running_batch": row_seconds / seconds if seconds > 0 else None,
            "peak_memory_bytes": max(peaks, default=None),
        }


def prefilled(records: list[RequestRecord]) -> list[RequestRecord]:
    """Those of passes in which every prompt was prefilled."""
    reusing = {r.repeat for r in records if r.times.reused_tokens}
    return [r for r in records if r.repeat not in reusing]


def _tpot(record: RequestRecord) -> list[float]:
    tokens = len(record.output_ids)
    return [(record.times.e2e_s - record.times.ttft_s) / (tokens - 1)] if tokens > 1 else []


def _duration(records: list[RequestRecord]) -> float | None:
    ends: dict[tuple[int, int], float] = {}
    for record in records:
        if record.times.queue_s is None:
            return None
        key = (record.repeat, record.times.segment)
        ends[key] = max(ends.get(key, 0.0), record.times.queue_s + record.times.e2e_s)
    return sum(ends.values())


SERVING: tuple[Metric, ...] = (
    Latency("ttft", lambda r: [] if r.times.reused_tokens else [r.times.ttft_s]),
    Latency("tpot", _tpot),
    Latency("itl", lambda record: record.times.steps.step_s),
    Latency("e2el", lambda r: [] if r.times.reused_tokens else [r.times.e2e_s]),
    PrefillThroughput(),
    EndToEndThroughput(),
    Counts(),
    Resources(),
)
