"""Figures by the length of the prompt: acceptance length and speed-up, a bucket each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results import stats
from specbench.results.cells import Cell, Group
from specbench.results.metrics import Row
from specbench.results.throughput import decode_sums

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "dataset",
    "arm",
    "batch",
    "tokens_from",
    "tokens_below",
    "prompts",
    "acceptance_length",
    "speedup",
    "speedup_low",
    "speedup_high",
)


def bucket_of(tokens: int) -> int:
    """The bucket of a prompt: b holds 2^b tokens up to 2^(b + 1), its end left out."""
    return max(tokens, 1).bit_length() - 1


def bucket_name(bucket: int) -> str:
    """Such as ``1K–2K``."""
    return f"{_short(1 << bucket)}–{_short(1 << bucket + 1)}"


def context_rows(groups: Sequence[Group]) -> list[Row]:
    """A row a drafting arm, dataset and bucket that holds prompts; unknown is None."""
    return [
        _row(cell, group, bucket)
        for group in groups
        for cell in group.cells
        if cell.speculative
        for bucket in sorted({bucket_of(prompt.tokens) for prompt in cell.dataset.prompts})
    ]


def context_frame(rows: Sequence[Row]) -> "pd.DataFrame":
    """The table ``context.csv``."""
    import pandas as pd

    table = [{name: row[name] for name in COLUMNS} for row in rows]
    return pd.DataFrame(table, columns=list(COLUMNS), dtype=object)


def _row(cell: Cell, group: Group, bucket: int) -> Row:
    prompts = cell.dataset.prompts
    places = [at for at, prompt in enumerate(prompts) if bucket_of(prompt.tokens) == bucket]
    indices = {prompts[place].index for place in places}
    base = group.autoregressive
    ratio = stats.Estimate()
    if base is not None and cell.shows_throughput and base.shows_throughput:
        sums = (*decode_sums(cell), *decode_sums(base))
        ratio = stats.speedup(*(part[:, places] for part in sums))
    return {
        "dataset": cell.dataset.name,
        "arm": cell.arm.name,
        "batch": cell.full_batch,
        "bucket": bucket,
        "tokens_from": 1 << bucket,
        "tokens_below": 1 << bucket + 1,
        "prompts": len(places),
        "acceptance_length": _acceptance_length(cell, indices),
        "speedup": ratio.value,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
    }


def _acceptance_length(cell: Cell, indices: set[int]) -> float | None:
    records = [r for r in cell.healthy if r.index in indices and r.committed]
    if not records or not cell.shows_acceptance:
        return None
    steps = sum(len(record.committed) for record in records)
    return sum(sum(record.committed) for record in records) / steps


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)
