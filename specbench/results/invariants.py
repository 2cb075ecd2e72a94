"""What holds in every record of a run; a figure is made only of records that keep it."""

from collections import Counter
from collections.abc import Sequence

from specbench.errors import SpecbenchError
from specbench.results.reading import RunData
from specbench.results.records import ArmRecord, RequestRecord, Status

_RELATIVE = 0.01
_ABSOLUTE_S = 1e-3


class InvariantError(SpecbenchError):
    """A record contradicts itself: the run, or the file, is wrong."""


def check_plan(data: RunData) -> None:
    """Check that every record belongs to the plan and that a finished pass is complete.

    Raises
    ------
    InvariantError
        The message names the arm, the dataset and the prompt or the counts.
    """
    arms = {arm.name for arm in data.run.arms}
    prompts = {entry.name: {p.index for p in entry.prompts} for entry in data.run.datasets}
    repeats = data.run.config.get("repeats")
    keys: list[tuple[str, str, int | None, int]] = [
        *((r.arm, r.dataset, r.index, r.repeat) for r in data.requests),
        *((v.arm, v.dataset, v.index, v.repeat) for v in data.verdicts),
        *((s.arm, s.dataset, s.index, s.repeat) for s in data.scores),
        *((p.arm, p.dataset, None, p.repeat) for p in data.passes),
    ]
    for arm, dataset, index, repeat in keys:
        if arm not in arms or dataset not in prompts:
            raise InvariantError(f"a record of {arm} on {dataset}, which run.json does not plan")
        if index is not None and index not in prompts[dataset]:
            raise InvariantError(
                f"a record of {arm} on {dataset} is of prompt {index}, which is not in run.json"
            )
        if isinstance(repeats, int) and not 0 <= repeat < repeats:
            raise InvariantError(
                f"a record of {arm} on {dataset} is of repeat {repeat}, run.json plans {repeats}"
            )
    _check_counters(data.passes)
    on_record = Counter((r.arm, r.dataset, r.repeat) for r in data.requests)
    for ended in data.passes:
        expected = len(prompts[ended.dataset])
        found = on_record[ended.arm, ended.dataset, ended.repeat]
        if ended.status in (Status.PASSED, Status.LOSSY) and found != expected:
            raise InvariantError(
                f"{ended.arm} on {ended.dataset}, repeat {ended.repeat}, is {ended.status} "
                f"with {found} of {expected} requests on record"
            )


def _check_counters(passes: Sequence[ArmRecord]) -> None:
    """Another engine's counters: some positions, and the same in every pass of an arm."""
    positions: dict[str, int] = {}
    for ended in passes:
        counted = ended.served.spec_decode if ended.served else None
        if counted is None:
            continue
        count = len(counted.accepted_per_position)
        numbers = (counted.num_drafts, counted.draft_tokens, counted.accepted_tokens)
        if min(*numbers, *counted.accepted_per_position, 0) < 0 or not count:
            raise InvariantError(
                f"{ended.arm} on {ended.dataset}, repeat {ended.repeat}: no engine counts "
                f"{counted.model_dump_json()[:200]}"
            )
        if positions.setdefault(ended.arm, count) != count:
            raise InvariantError(
                f"{ended.arm} counted {positions[ended.arm]} draft positions in one pass and "
                f"{count} in another"
            )


def check_request(record: RequestRecord, gamma: int, full_batch: int) -> None:
    """Check the token counts of one request.

    One entry a step in every list; ``1 <= committed <= accepted + 1`` and
    ``0 <= accepted <= drafted <= gamma`` in every step, hence ``1 <= AL <= gamma + 1``; and the
    steps commit every output token but the first, which prefill yields.

    Raises
    ------
    InvariantError
        The message names the request, the step and the numbers.
    """
    steps = len(record.committed)
    times = record.times.steps
    lists = {
        "drafted": record.drafted,
        "accepted": record.accepted,
        **{name: getattr(times, name) for name in type(times).model_fields},
    }
    for name, values in lists.items():
        if values is not None and len(values) != steps:
            raise _error(record, f"{len(values)} entries in {name} for {steps} steps")
    bounds = [gamma] * steps if record.drafted is None else record.drafted
    for step, (drafted, accepted, committed, running) in enumerate(
        zip(bounds, record.accepted, record.committed, times.running, strict=True)
    ):
        if not 0 <= accepted <= drafted <= gamma:
            raise _error(
                record, f"step {step}: {accepted} accepted of {drafted} drafted, gamma {gamma}"
            )
        if not 1 <= committed <= accepted + 1:
            raise _error(record, f"step {step}: {committed} committed, {accepted} accepted")
        if not 1 <= running <= full_batch:
            raise _error(record, f"step {step}: {running} running in a batch of {full_batch}")
    if sum(record.committed) != len(record.output_ids) - 1:
        raise _error(
            record,
            f"{sum(record.committed)} tokens committed, {len(record.output_ids)} in the output "
            "(prefill yields one)",
        )


def check_times(record: RequestRecord) -> None:
    """Check that a request's times are non-negative and fit into each other.

    Prefill lies within TTFT, TTFT and the decode steps within the end-to-end time, and a step's
    parts within the step. Hence step ITL / AL is at most TPOT; what lies between is the wait for
    the prefill of others.

    Raises
    ------
    InvariantError
        The message names the request and the seconds.
    """
    times = record.times
    steps = times.steps
    numbers: dict[str, list[float] | None] = {
        "queue": None if times.queue_s is None else [times.queue_s],
        "prefill": [times.prefill_s],
        "step": steps.step_s,
        "draft": steps.draft_s,
        "verify": steps.verify_s,
        "selection": steps.selection_s,
        "sampling": steps.sampling_s,
    }
    for name, values in numbers.items():
        if values and min(values) < 0:
            raise _error(record, f"negative {name} time {min(values)}")
    if _exceeds(times.prefill_s, times.ttft_s):
        raise _error(record, f"prefill {times.prefill_s:.6f} s exceeds TTFT {times.ttft_s:.6f} s")
    total = times.ttft_s + sum(steps.step_s)
    if _exceeds(total, times.e2e_s):
        raise _error(record, f"TTFT and steps take {total:.6f} s, end to end {times.e2e_s:.6f} s")
    parts = sum(map(sum, steps.parts or ()))
    if _exceeds(parts, sum(steps.step_s)):
        raise _error(record, f"parts of steps take {parts:.6f} s, steps {sum(steps.step_s):.6f} s")


def unaccounted(records: list[RequestRecord]) -> float | None:
    """The share of decode time that is neither a step nor another request's prefill.

    All requests must be of one pass. The user's loop is on the clock, so this should be next to
    nothing: TPOT is then step ITL / AL plus the wait for prefills. None without decode time, or
    where the requests share no time line.
    """
    busy = [
        (r.times.segment, r.times.queue_s, r.times.queue_s + r.times.ttft_s)
        for r in records
        if r.times.queue_s is not None
    ]
    total = explained = 0.0
    for record in records:
        times = record.times
        if times.queue_s is None:
            continue
        begin, end = times.queue_s + times.ttft_s, times.queue_s + times.e2e_s
        waited = sum(
            max(0.0, min(end, stop) - max(begin, start))
            for segment, start, stop in busy
            if segment == times.segment
        )
        total += end - begin
        explained += sum(times.steps.step_s) + waited
    return max(0.0, 1 - explained / total) if total > 0 else None


def _exceeds(part: float, whole: float) -> bool:
    return part > whole * (1 + _RELATIVE) + _ABSOLUTE_S


def _error(record: RequestRecord, what: str) -> InvariantError:
    return InvariantError(
        f"{record.arm} on {record.dataset}, repeat {record.repeat}, prompt {record.index} "
        f"({record.item_id}): {what}"
    )
