"""What is kept of a run where its raw records are too large: sums a repeat, and sums a request.

`repeats.csv` and `requests.csv` are enough to recompute every throughput, step time and
acceptance length of the run.
"""

import json
from statistics import median
from typing import TYPE_CHECKING

from specbench.results.acceptance import steps_of
from specbench.results.cells import Cell, Group
from specbench.results.metrics import Row, prefilled
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
    "step_ms",
    "healthy_tokens",
    "healthy_seconds",
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
    """The window of full steps of one pass: what step time and decode throughput are made of.

    The step's time is that of all its requests; throughput leaves out those whose output loops.
    """
    every = [record for record in cell.requests if record.repeat == repeat]
    healthy = [record for record in cell.healthy if record.repeat == repeat]
    passes = [record for record in cell.passes if record.repeat == repeat]
    count, seconds, _ = _window(cell, every)
    _, healthy_seconds, tokens = _window(cell, healthy)
    shown = healthy_seconds > 0 and cell.shows_throughput
    first = [r.times.ttft_s for r in prefilled(every)]
    row: Row = {
        "dataset": cell.dataset.name,
        "arm": cell.arm.name,
        "repeat": repeat,
        "requests": len(every),
        "full_steps": round(count, 3),
        "full_seconds": seconds,
        "step_ms": 1e3 * seconds / count if count else None,
        "healthy_tokens": tokens,
        "healthy_seconds": healthy_seconds,
        "output_throughput": tokens / healthy_seconds if shown else None,
        "acceptance_length": _acceptance_length(cell, healthy),
        "median_ttft_ms": 1e3 * median(first) if first else None,
    }
    for ended in passes:
        row |= {
            "status": ended.status.value,
            "graph_mode": ended.graph_mode,
            "attention_backend": ended.attention_backend,
        }
        if (served := ended.served) is not None:
            row |= {
                "engine_version": served.version,
                "fill_cache_hits": served.fill_cache_hits,
                "decode_cache_hit_rate": served.decode_cache_hits / served.prompt_tokens,
                "preemptions": served.preemptions,
            }
    return row


def _window(cell: Cell, records: list[RequestRecord]) -> tuple[float, float, int]:
    """Full steps, their seconds and tokens, of all `records` together."""
    parts = [cell.window(record) for record in records]
    return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)


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
        "ttft_ms": None if times.reused_tokens else 1e3 * times.ttft_s,
        "e2e_ms": None if times.reused_tokens else 1e3 * times.e2e_s,
        "steps": len(record.committed),
        "step_seconds": sum(times.steps.step_s),
        "committed": sum(record.committed),
        "acceptance_histogram": json.dumps(histogram) if steps else None,
    }
