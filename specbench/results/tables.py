"""The CSV files of a run: fixed columns, one row an arm and dataset (lossless.csv: a request)."""

import json
from typing import TYPE_CHECKING, Any

from specbench.results.acceptance import ACCEPTANCE, OVERHEAD
from specbench.results.cells import Cell, Group
from specbench.results.metrics import SERVING, Metric, Row
from specbench.results.records import LosslessRecord, RunRecord
from specbench.results.throughput import THROUGHPUT

if TYPE_CHECKING:
    import pandas as pd

METRICS: tuple[Metric, ...] = THROUGHPUT + SERVING + ACCEPTANCE + OVERHEAD

IDENTITY = ("dataset", "arm", "method", "status")
MARKS = ("degenerate_share", "all_degenerate", "dummy_weights", "ignore_eos")
SETTINGS = ("gamma", "kept_ratio")
PROTOCOL = (
    "model",
    "device",
    "dtype",
    "batch_size",
    "max_prompt_tokens",
    "max_new_tokens",
    "temperature",
    "repeats",
    "graph_mode",
    "attention_backend",
)
LOSSLESS = tuple(name for name in LosslessRecord.model_fields if name != "schema_version")


def build_rows(run: RunRecord, groups: list[Group]) -> list[Row]:
    """Every figure of every arm and dataset, a flat row each, in the order of the plan."""
    rows = []
    for group in groups:
        for cell in group.cells:
            row = _identity(cell) | _protocol(run, cell) | {"lossless": verdict(cell)}
            for metric in METRICS:
                row |= metric.row(cell, group)
            rows.append(row)
    return rows


def columns_of(table: str) -> list[str]:
    """The columns of ``<table>.csv``, which do not depend on the run.

    Parameters
    ----------
    table : str
        ``throughput``, ``acceptance``, ``overhead`` or ``lossless``.
    """
    if table == "lossless":
        return list(LOSSLESS)
    figures = [name for metric in METRICS if metric.table == table for name in metric.columns]
    tail = ["lossless", *MARKS, *PROTOCOL] if table == "throughput" else list(MARKS)
    return [*IDENTITY, *SETTINGS, *figures, *tail]


def build_frames(rows: list[Row], verdicts: list[LosslessRecord]) -> dict[str, "pd.DataFrame"]:
    """The tables by name; unknown is an empty field, and lists are written as JSON."""
    import pandas as pd

    frames = {
        table: pd.DataFrame(
            [{name: _plain(row[name]) for name in columns_of(table)} for row in rows],
            columns=columns_of(table),
            dtype=object,
        )
        for table in ("throughput", "acceptance", "overhead")
    }
    frames["lossless"] = pd.DataFrame(
        [record.model_dump(include=set(LOSSLESS)) for record in verdicts],
        columns=list(LOSSLESS),
        dtype=object,
    )
    return frames


def verdict(cell: Cell) -> str | None:
    """The losslessness of an arm in a few words, such as ``"exact 8/8"``; None before any check.

    The numbers are the requests found lossless and those checked. Of another engine's arm they are
    those that agree with the autoregressive arm, ``"agrees 9/10"``: no verdict.
    """
    if not cell.verdicts:
        return None
    compared = [record for record in cell.verdicts if record.tier == "agreement"]
    if compared:
        return f"agrees {sum(record.identical is True for record in compared)}/{len(compared)}"
    checked = [record for record in cell.verdicts if record.lossless is not None]
    if not checked:
        return "unchecked"
    good = sum(record.lossless is True for record in checked)
    text = f"{'+'.join(sorted({record.tier for record in checked}))} {good}/{len(checked)}"
    left = len(cell.verdicts) - len(checked)
    return f"{text}, {left} unchecked" if left else text


def _identity(cell: Cell) -> Row:
    prompts = len(cell.dataset.prompts)
    share = 1.0 if cell.all_degenerate else len(cell.excluded) / prompts if prompts else None
    return {
        "dataset": cell.dataset.name,
        "arm": cell.arm.name,
        "method": cell.arm.method,
        "status": cell.status.value if cell.status else None,
        "gamma": cell.gamma if cell.speculative else None,
        "kept_ratio": cell.arm.parameters.get("kept_ratio"),
        "degenerate_share": share,
        "all_degenerate": cell.all_degenerate,
        "dummy_weights": cell.dummy,
    }


def _protocol(run: RunRecord, cell: Cell) -> Row:
    config = run.config
    row = {name: config.get(name) for name in PROTOCOL} | {
        "model": run.model.get("spec", config.get("model")),
        "max_new_tokens": cell.dataset.max_new_tokens,
        "max_prompt_tokens": max((p.tokens for p in cell.dataset.prompts), default=None),
        "ignore_eos": config.get("ignore_eos"),
    }
    for name in ("graph_mode", "attention_backend"):
        seen = sorted({str(getattr(record, name)) for record in cell.passes})
        row[name] = "+".join(seen) or None
    return row


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value
