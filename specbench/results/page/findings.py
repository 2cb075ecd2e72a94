"""The few sentences that a report begins with."""

from collections.abc import Sequence

from specbench.results.metrics import Row
from specbench.results.plots.style import unique
from specbench.results.summary_table import COLUMNS, cell_text

_BASES = (
    ("speedup_over_autoregressive", "autoregressive decoding"),
    ("speedup_over_vllm", "vLLM"),
)
_TEXT = {column.key: column for column in COLUMNS}


def findings(rows: Sequence[Row]) -> list[str]:
    """What was found on each workload: the best arm over each baseline, and what failed."""
    lines = []
    for workload in unique(rows, "workload"):
        mine = [row for row in rows if row["workload"] == workload]
        for key, base in _BASES:
            line = _best(mine, key, base)
            if line:
                lines.append(f"{workload}: {line}")
        lossy = [row["series"] for row in mine if row["status"] == "LOSSY"]
        if lossy:
            lines.append(f"{workload}: not lossless: {', '.join(lossy)}")
        failed = [
            f"{row['series']} ({row['status'] or 'unfinished'})"
            for row in mine
            if row["status"] not in ("PASSED", "LOSSY")
        ]
        if failed:
            lines.append(f"{workload}: no figures of {', '.join(failed)}")
    return lines


def _best(rows: Sequence[Row], key: str, base: str) -> str | None:
    """The arm that PASSED with the largest ratio, said as what its interval allows."""
    found = [
        row
        for row in rows
        if row[key] is not None
        and row["status"] == "PASSED"
        and row["method"] not in ("autoregressive", "vllm")
    ]
    if not found:
        return None
    best = max(found, key=lambda row: row[key])
    low, high = best[f"{key}_low"], best[f"{key}_high"]
    ratio = f"{best['series']} decodes {cell_text(best, _TEXT[key])} times as fast as {base}"
    if low is None or high is None:
        return f"{ratio}, without an interval"
    if low <= 1 <= high:
        return f"{ratio}: no difference beyond the noise"
    return ratio if best[key] > 1 else f"{ratio}: no arm pays here"
