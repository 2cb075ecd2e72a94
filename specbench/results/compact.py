"""What is kept of a run where its raw records are too large: sums a repeat, and sums a request.

`repeats.csv` and `requests.csv` are enough to recompute every throughput, step time and
acceptance length of the run.
"""

import json
from statistics import median
from typing import TYPE_CHECKING

from specbench.results.acceptance import steps_of
from specbench.results.cells import Cell, Group
from specbench.results.metrics import Row
from specbench.results.records import RequestRecord

if TYPE_CHECKING:
    import pandas as pd

REPEATS = (
    "dataset",
    "arm",
    "repeat",
    "status",
    "requests",
    "full_steps",
    "full_seconds",
    "full_tokens",
    "step_ms",
    "output_throughput",
    "acceptance_length",
    "median_ttft_ms",
    "graph_mode",
    "attention_backend",
    "engine_version",
    "fill_cache_hits",
    "decode_cache_hit_rate",
    "preemptions",
)
REQUESTS = (
    "dataset",
    "arm",
    "repeat",
    "index",
    "item_id",
    "prompt_tokens",
    "output_tokens",
    "finish_reason",
    "degenerate",
    "ttft_ms",
    "e2e_ms",
    "steps",
    "step_seconds",
    "committed",
    "acceptance_histogram",
)


def compact_frames(groups: list[Group]) -> dict[str, "pd.DataFrame"]:
    """The two tables by name, rows in the order of the plan."""
    import pandas as pd

    cells = [cell for group in groups for cell in group.cells]
    repeats = [_repeat(cell, repeat) for cell in cells for repeat in range(cell.repeats)]
    requests = [_request(cell, record) for cell in cells for record in cell.requests]
    return {
        "repeats": pd.DataFrame(repeats, columns=list(REPEATS), dtype=object),
        "requests": pd.DataFrame(requests, columns=list(REQUESTS), dtype=object),
    }


def _repeat(cell: Cell, repeat: int) -> Row:
    """The window of full steps of one pass: what decode throughput and step time are made of."""
    records = [record for record in cell.healthy if record.repeat == repeat]
    passes = [record for record in cell.passes if record.repeat == repeat]
    count = seconds = 0.0
    tokens = 0
    for record in records:
        steps = record.times.steps
        for step, running, committed in zip(
            steps.step_s, steps.running, record.committed, strict=True
        ):
            if running == cell.full_batch:
                count += 1 / running
                seconds += step / running
                tokens += committed
    row: Row = {
        "dataset": cell.dataset.name,
        "arm": cell.arm.name,
        "repeat": repeat,
        "requests": len(records),
        "full_steps": round(count, 3),
        "full_seconds": seconds,
        "full_tokens": tokens,
        "step_ms": 1e3 * seconds / count if count else None,
        "output_throughput": tokens / seconds if seconds and cell.shows_throughput else None,
        "acceptance_length": _acceptance_length(cell, records),
        "median_ttft_ms": median(1e3 * r.times.ttft_s for r in records) if records else None,
    }
    for ended in passes:
        row |= {
            "status": ended.status.value,
            "graph_mode": ended.graph_mode,
            "attention_backend": ended.attention_backend,
        }
        if (served := ended.served) is not None:
            hits = served.decode_cache_hits
            row |= {
                "engine_version": served.version,
                "fill_cache_hits": served.fill_cache_hits,
                "decode_cache_hit_rate": None if hits is None else hits / served.prompt_tokens,
                "preemptions": served.preemptions,
            }
    return row


def _acceptance_length(cell: Cell, records: list[RequestRecord]) -> float | None:
    steps = sum(len(record.committed) for record in records)
    if not steps or not cell.shows_acceptance:
        return None
    return sum(sum(record.committed) for record in records) / steps


def _request(cell: Cell, record: RequestRecord) -> Row:
    times = record.times
    steps = steps_of(record) if cell.shows_acceptance else []
    histogram = [sum(step.accepted == j for step in steps) for j in range(cell.gamma + 1)]
    return {
        "dataset": record.dataset,
        "arm": record.arm,
        "repeat": record.repeat,
        "index": record.index,
        "item_id": record.item_id,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": len(record.output_ids),
        "finish_reason": record.finish_reason,
        "degenerate": record.degenerate,
        "ttft_ms": 1e3 * times.ttft_s,
        "e2e_ms": 1e3 * times.e2e_s,
        "steps": len(record.committed),
        "step_seconds": sum(times.steps.step_s),
        "committed": sum(record.committed),
        "acceptance_histogram": json.dumps(histogram) if steps else None,
    }
