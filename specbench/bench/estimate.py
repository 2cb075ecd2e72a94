"""What a plan will run and how long that takes, as far as earlier runs on this machine tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.environment import describe
from specbench.bench.plan import Plan
from specbench.bench.redact import redact
from specbench.errors import DataError
from specbench.results.protocol import device_name
from specbench.results.reading import RUN, read_requests, read_run
from specbench.results.records import RequestRecord, RunRecord

if TYPE_CHECKING:
    from rich.table import Table

Key = tuple[str, str]


@dataclass(frozen=True)
class Estimate:
    """A cell of the plan.

    Attributes
    ----------
    dataset, arm : str
    passes : int
        Passes, one a repeat.
    prompt_tokens, new_tokens : int
        Of one pass; new tokens at most.
    seconds : float or None
        Of all passes; None where no earlier run tells.
    """

    dataset: str
    arm: str
    passes: int
    prompt_tokens: int
    new_tokens: int
    seconds: float | None


def estimate_cells(plan: Plan, folders: Iterable[Path]) -> list[Estimate]:
    """Every cell of `plan`, in order.

    A cell's time is that of an earlier run in `folders` of the same arm with the same settings, on
    the same model, device, batch, data, context and new tokens: its seconds a request.
    """
    known = _known_seconds(plan, folders)
    found = []
    for workload in plan.workloads:
        for arm in plan.arms:
            key = workload.info.name, arm.name
            if not plan.includes(*key):
                continue
            count = len(workload.requests) * plan.config.repeats
            found.append(
                Estimate(
                    dataset=key[0],
                    arm=key[1],
                    passes=plan.config.repeats,
                    prompt_tokens=sum(len(r.token_ids) for r in workload.requests),
                    new_tokens=sum(r.max_new_tokens for r in workload.requests),
                    seconds=known[key] * count if key in known else None,
                )
            )
    return found


def plan_table(cells: list[Estimate]) -> "Table":
    """The plan as a table with its sums; unknown times are dashes."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_footer=True)
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    total = f"{'≥ ' if len(known) < len(cells) else ''}{_time(sum(known))}" if known else "–"
    prompt = sum(cell.prompt_tokens * cell.passes for cell in cells)
    new = sum(cell.new_tokens * cell.passes for cell in cells)
    table.add_column("dataset", footer="all passes")
    table.add_column("arm", footer=f"{len(cells)} cells")
    for title, footer in (
        ("passes", str(sum(cell.passes for cell in cells))),
        ("prompt tokens", f"{prompt:,}"),
        ("new tokens, at most", f"{new:,}"),
        ("time", total),
    ):
        table.add_column(title, footer=footer, justify="right")
    for cell in cells:
        table.add_row(
            cell.dataset,
            cell.arm,
            str(cell.passes),
            f"{cell.prompt_tokens:,}",
            f"{cell.new_tokens:,}",
            "–" if cell.seconds is None else _time(cell.seconds),
        )
    return table


def _known_seconds(plan: Plan, folders: Iterable[Path]) -> dict[Key, float]:
    """Seconds a request by cell, from the latest run that tells."""
    runs = []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        if (folder / RUN).is_file():
            try:
                runs.append((read_run(folder), folder))
            except DataError:
                continue  # an estimate needs no record that cannot be read
    known: dict[Key, float] = {}
    device = device_name(_here(plan))
    for run, folder in sorted(runs, key=lambda entry: entry[0].created):
        if _alike(plan, run) and device_name(run) == device:
            known |= _seconds(plan, run, read_requests(folder))
    return known


def _here(plan: Plan) -> RunRecord:
    return RunRecord(
        created="",
        config=plan.config.model_dump(mode="json"),
        choices=[],
        environment=describe(()),
        model={},
        datasets=[],
        refused=[],
        arms=[],
        cells=None,
        warnings=[],
    )


def _alike(plan: Plan, run: RunRecord) -> bool:
    ours = redact(plan.config.model_dump(mode="json"))
    names = ("batch_size", "dtype", "device", "rope_scaling", "ignore_eos", "model")
    return all(run.config.get(name) == ours[name] for name in names)


def _seconds(plan: Plan, run: RunRecord, requests: list[RequestRecord]) -> dict[Key, float]:
    arms = {arm.name: arm.info.parameters for arm in plan.arms}
    same_arms = {arm.name for arm in run.arms if arms.get(arm.name) == arm.parameters}
    sizes = {w.info.name: (w.info.context_len, w.info.max_new_tokens) for w in plan.workloads}
    same_data = {
        entry.name
        for entry in run.datasets
        if sizes.get(entry.name) == (entry.context_len, entry.max_new_tokens)
    }
    ends: dict[tuple[Key, int, int], float] = {}
    counts: dict[Key, int] = {}
    for record in requests:
        key = record.dataset, record.arm
        if record.arm not in same_arms or record.dataset not in same_data:
            continue
        if record.times.queue_s is None or record.times.reused_tokens:
            continue  # prefill and decode were timed apart, or prefill not at all
        line = (key, record.repeat, record.times.segment)
        ends[line] = max(ends.get(line, 0.0), record.times.queue_s + record.times.e2e_s)
        counts[key] = counts.get(key, 0) + 1
    return {
        key: sum(end for line, end in ends.items() if line[0] == key) / count
        for key, count in counts.items()
    }


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
