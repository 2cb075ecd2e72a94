"""How an iteration's time is split, and what acceptance length would pay for it."""

from typing import ClassVar

from specbench.results.cells import Cell, Group
from specbench.results.metrics import Metric, Row, Table

PARTS = ("draft", "verify", "selection", "sampling", "other")
TIMERS, TRACE = "timers (CPU)", "profiler trace"
PAPER_AL = 6.24  # Yue et al., arXiv 2602.07223: Qwen3-8B, gamma 6


class TimeSplit(Metric):
    """Milliseconds of one iteration with the batch full, split; selection's share of it.

    From a profiler trace where one is on record, else from timers on the CPU, else unknown.
    `selection_trace_ms` is selection measured a second way, `selection_agreement` the difference
    of the two and `split_sum_error` that of the parts' sum, both as shares of the iteration.
    `break_even_al` is the iteration over the autoregressive one: the AL below which drafting loses;
    `modelled_speedup` is the speed-up that this makes of the AL in Vegas's paper, whatever the AL
    was. `draft_roofline` and `iteration_roofline` are device time over the time in which a copy
    moves as many bytes: weights, and KV read and written.
    """

    table: ClassVar[Table] = "overhead"
    columns = (
        "iterations",
        "iteration_ms",
        *(f"{part}_ms" for part in PARTS),
        "selection_percent",
        "selection_trace_ms",
        "selection_agreement",
        "split_sum_error",
        "break_even_al",
        "modelled_speedup",
        "draft_bytes",
        "iteration_bytes",
        "copy_gb_per_s",
        "draft_roofline",
        "iteration_roofline",
        "overhead_source",
    )

    def compute(self, cell: Cell, group: Group) -> Row:
        count, total, split = _split(cell)
        row: Row = {}
        if count:
            row |= {"iterations": round(count, 3), "iteration_ms": 1e3 * total / count}
        if count and cell.speculative:
            row["break_even_al"] = paying = self._break_even(total / count, group)
            row["modelled_speedup"] = PAPER_AL / paying if paying else None
        if cell.overhead is not None:
            return row | _traced(cell)
        if count and split is not None:
            row |= {f"{part}_ms": 1e3 * split[part] / count for part in PARTS}
            row["overhead_source"] = TIMERS
            if cell.speculative and total > 0:
                row["selection_percent"] = 100 * split["selection"] / total
        return row

    def _break_even(self, iteration: float, group: Group) -> float | None:
        base = group.autoregressive
        if base is None or not base.measured:
            return None
        count, total, _ = _split(base)
        return iteration / (total / count) if count and total > 0 else None


def _traced(cell: Cell) -> Row:
    record = cell.overhead
    assert record is not None, "called without a trace"
    parts = {f"{part}_ms": getattr(record, f"{part}_ms") for part in PARTS}
    row: Row = parts | {
        "iterations": record.iterations,
        "iteration_ms": record.iteration_ms,
        "selection_trace_ms": record.selection_trace_ms,
        "split_sum_error": abs(sum(parts.values()) - record.iteration_ms) / record.iteration_ms,
        "overhead_source": TRACE,
    }
    if cell.speculative:
        row["selection_percent"] = 100 * record.selection_ms / record.iteration_ms
    if record.selection_trace_ms is not None:
        difference = abs(record.selection_ms - record.selection_trace_ms)
        row["selection_agreement"] = difference / record.iteration_ms
    row |= {"draft_bytes": record.draft_bytes, "iteration_bytes": record.iteration_bytes}
    row["copy_gb_per_s"] = record.copy_gb_per_s
    if record.copy_gb_per_s:
        for part in ("draft", "iteration"):
            moved = getattr(record, f"{part}_bytes")
            spent = getattr(record, f"{part}_ms") * 1e-3
            row[f"{part}_roofline"] = spent * record.copy_gb_per_s * 1e9 / moved if moved else None
    return row


def _split(cell: Cell) -> tuple[float, float, dict[str, float] | None]:
    """Full iterations, their seconds, and those of their parts where these are known.

    A request bears 1/running of each.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    count = total = 0.0
    known = True
    for record in cell.healthy:
        steps = record.times.steps
        for i, running in enumerate(steps.running):
            if running != cell.full_batch:
                continue
            count += 1 / running
            whole = steps.step_s[i] / running
            total += whole
            if steps.parts is None:
                known = False
                continue
            spent = [part[i] / running for part in steps.parts]
            for name, value in zip(PARTS, [*spent, whole - sum(spent)], strict=True):
                parts[name] += value
    return count, total, parts if known else None


TIME_SPLIT: tuple[Metric, ...] = (TimeSplit(),)
