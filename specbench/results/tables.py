"""The CSV files of a run: fixed columns, one row an arm and dataset (lossless.csv: a request)."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.results.acceptance import ACCEPTANCE
from specbench.results.cells import Cell, Group
from specbench.results.metrics import SERVING, Metric, Row
from specbench.results.overhead import TIME_SPLIT
from specbench.results.plain import one_line, spreadsheet
from specbench.results.records import ArmInfo, LosslessRecord, RefusedDataset, RunRecord
from specbench.results.scores import SCORES
from specbench.results.sources import Source
from specbench.results.throughput import THROUGHPUT

if TYPE_CHECKING:
    import pandas as pd

METRICS: tuple[Metric, ...] = THROUGHPUT + SERVING + ACCEPTANCE + TIME_SPLIT + SCORES

IDENTITY = ("dataset", "arm", "method", "status")
MARKS = ("degenerate_share", "all_degenerate", "dummy_weights", "ignore_eos")
SETTINGS = ("gamma", "kept_ratio")
# what an iteration's time depends on, beside the figures
OVERHEAD = ("variant", "model", "batch", "context", "spec_decode_acceptance_length")
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
    return name_rows(_rows(run, groups, None))


def merge_rows(sources: Sequence[Source]) -> list[Row]:
    """The rows of several runs, those of a workload together, each named after its run too."""
    rows = [row for source in sources for row in _rows(source.run, source.groups, source.label)]
    place = {name: at for at, name in enumerate(dict.fromkeys(row["dataset"] for row in rows))}

    def order(row: Row) -> tuple[int, int, int]:
        return place[row["dataset"]], row["batch_size"] or 0, row["max_prompt_tokens"] or 0

    return name_rows(sorted(rows, key=order))


def name_rows(rows: list[Row]) -> list[Row]:
    """Give each row its `workload` and `series`: what tables and plots call it.

    A workload is a dataset, with its batch and context where the rows have several of them; a
    series is an arm, with its run where several runs have it on the same workload.
    """
    batches = {row["batch_size"] for row in rows}
    contexts: dict[str, set[int | None]] = {}
    for row in rows:
        contexts.setdefault(row["dataset"], set()).add(row["max_prompt_tokens"])
    taken = Counter((*_workload(row), row["arm"]) for row in rows)
    twice = {key[-1] for key, count in taken.items() if count > 1}
    for row in rows:
        workload = row["dataset"]
        if len(contexts[row["dataset"]]) > 1 and row["max_prompt_tokens"] is not None:
            workload += f" {row['max_prompt_tokens']:,}"
        if len(batches) > 1:
            workload += f" ×{row['batch_size']}"
        series = f"{row['arm']} ({row['run']})" if row["arm"] in twice else row["arm"]
        row["workload"], row["series"] = one_line(workload), one_line(series)
    return rows


def _workload(row: Row) -> tuple[str, int | None, int | None]:
    return row["dataset"], row["max_prompt_tokens"], row["batch_size"]


def _rows(run: RunRecord, groups: list[Group], label: str | None) -> list[Row]:
    rows = []
    for group in groups:
        for cell in group.cells:
            row = _identity(cell) | _protocol(run, cell) | {"lossless": verdict(cell)}
            for metric in METRICS:
                row |= metric.row(cell, group)
            rows.append(row | {"run": label})
    unknown = dict.fromkeys(_row_keys(), None) if run.refused else {}
    for refused in run.refused:
        rows += [unknown | _refusal(run, refused, arm, label) for arm in run.arms]
    return rows


def _refusal(run: RunRecord, refused: RefusedDataset, arm: ArmInfo, label: str | None) -> Row:
    """The row of an arm on a dataset that could not be run at all."""
    return {
        "dataset": refused.name,
        "arm": arm.name,
        "method": arm.method,
        "variant": arm.parameters.get("variant"),
        "status": refused.status.value,
        "model": run.model.get("spec", run.config.get("model")),
        "all_degenerate": False,
        "batch_size": run.config.get("batch_size"),
        "run": label,
    }


def _row_keys() -> list[str]:
    """Every key of a row."""
    tables = ("throughput", "acceptance", "overhead", "scores")
    return [name for table in tables for name in columns_of(table)]


def columns_of(table: str) -> list[str]:
    """The columns of ``<table>.csv``, which do not depend on the run.

    Parameters
    ----------
    table : str
        ``throughput``, ``acceptance``, ``overhead``, ``scores`` or ``lossless``.
    """
    if table == "lossless":
        return list(LOSSLESS)
    figures = [name for metric in METRICS if metric.table == table for name in metric.columns]
    tail = ["lossless", *MARKS, *PROTOCOL] if table == "throughput" else list(MARKS)
    head = [*SETTINGS, *OVERHEAD] if table == "overhead" else list(SETTINGS)
    return [*IDENTITY, *head, *figures, *tail]


def build_frames(rows: list[Row], verdicts: list[LosslessRecord]) -> dict[str, "pd.DataFrame"]:
    """The tables by name; unknown is an empty field, and lists are written as JSON."""
    import pandas as pd

    frames = {
        table: pd.DataFrame(
            [{name: _plain(row[name]) for name in columns_of(table)} for row in rows],
            columns=columns_of(table),
            dtype=object,
        )
        for table in ("throughput", "acceptance", "overhead", "scores")
    }
    frames["lossless"] = pd.DataFrame(
        [record.model_dump(include=set(LOSSLESS)) for record in verdicts],
        columns=list(LOSSLESS),
        dtype=object,
    )
    return frames


def to_csv(frame: "pd.DataFrame") -> bytes:
    """The table as a file. Figures have ten digits: the last ones of a float are the machine's."""
    import pandas as pd

    # a column at a time, as objects: a count beside an unknown one must not become 48.0
    columns = {
        name: pd.Series([spreadsheet(_rounded(value)) for value in frame[name]], dtype=object)
        for name in frame
    }
    return pd.DataFrame(columns).to_csv(index=False).encode()


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
        "variant": cell.arm.parameters.get("variant"),
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
        "max_prompt_tokens": _context(cell),
        "batch": cell.full_batch,
        "context": _context(cell),
        "ignore_eos": config.get("ignore_eos"),
    }
    for name in ("graph_mode", "attention_backend"):
        seen = sorted({str(getattr(record, name)) for record in cell.passes})
        row[name] = "+".join(seen) or None
    return row


def _context(cell: Cell) -> int | None:
    """The longest prompt, in tokens."""
    return max((prompt.tokens for prompt in cell.dataset.prompts), default=None)


def _plain(value: Any) -> Any:
    return json.dumps([_rounded(entry) for entry in value]) if isinstance(value, list) else value


def _rounded(value: Any) -> Any:
    return float(f"{value:.10g}") if isinstance(value, float) else value
