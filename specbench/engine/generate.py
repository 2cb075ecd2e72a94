"""Continuous batching: requests through the engine's rows, each one's steps recorded."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.engine.engine import Engine, StepResult
from specbench.engine.phases import PHASES
from specbench.errors import NumericalError
from specbench.results.records import RequestTimes, StepTimes


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    Attributes
    ----------
    index : int
        Its place in the prompt list; it also keys the random numbers.
    item_id : str
    token_ids : list of int
    max_new_tokens : int
    """

    index: int
    item_id: str
    token_ids: list[int]
    max_new_tokens: int


@dataclass
class Generated:
    """A completed request; the lists have one entry a verify step.

    `drafted` is None where the engine does not say how many tokens it drafted.
    """

    request: Request
    output_ids: list[int]
    finish_reason: Literal["eos", "length"]
    drafted: list[int] | None
    accepted: list[int]
    committed: list[int]
    times: RequestTimes


@dataclass
class Progress:
    """Callbacks for what a person watches: prompt tokens prefilled, tokens decoded."""

    prefilled: Callable[[int], None] = lambda count: None
    decoded: Callable[[int], None] = lambda count: None


@dataclass
class _Running:
    request: Request
    admitted: float
    queue_s: float
    prefill_s: float
    reused_tokens: int
    output_ids: list[int]
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    splits: list[list[float] | None] = field(default_factory=list)

    def finish(self, reason: Literal["eos", "length"], ended: float, segment: int) -> Generated:
        known = [split for split in self.splits if split is not None]
        columns = [[split[i] for split in known] for i in range(len(PHASES))]
        draft, verify, selection, sampling = (
            columns if len(known) == len(self.splits) else [None] * len(PHASES)
        )
        steps = StepTimes(
            step_s=self.step_s,
            draft_s=draft,
            verify_s=verify,
            selection_s=selection,
            sampling_s=sampling,
            running=self.running,
        )
        times = RequestTimes(
            segment=segment,
            queue_s=self.queue_s,
            reused_tokens=self.reused_tokens,
            prefill_s=self.prefill_s,
            ttft_s=self.prefill_s,
            e2e_s=ended - self.admitted,
            steps=steps,
        )
        return Generated(
            self.request,
            self.output_ids,
            reason,
            self.drafted,
            self.accepted,
            self.committed,
            times,
        )


def generate(
    engine: Engine,
    requests: Sequence[Request],
    progress: Progress | None = None,
    segment: int = 0,
    fresh: bool = True,
) -> Generator[Generated]:
    """Decode requests with the engine's method, yielding each as it completes.

    A finished request leaves its row and the next prompt is prefilled in its place; that prefill
    is no part of any step's time.

    Parameters
    ----------
    engine : Engine
        Bound to a method by `Engine.use`; its rows are emptied when the iterator ends or is closed.
    requests : sequence of Request
    progress : Progress, optional
    segment : int
        Copied into the records: which process of a resumed run this is.
    fresh : bool
        Prefill every prompt, also those that the engine keeps.

    Raises
    ------
    NumericalError
        The target's logits were NaN or infinite; names the request and the step.
    """
    progress = progress or Progress()
    queue = deque(requests)
    running: dict[int, _Running] = {}
    began = time.perf_counter()
    try:
        while queue or running:
            free = (row for row in range(engine.batch.rows) if row not in running)
            for row in list(free)[: len(queue)]:
                state, done = _admit(engine, row, queue.popleft(), began, progress, fresh)
                if done:
                    engine.release(row)
                    yield state.finish(done, state.admitted + state.prefill_s, segment)
                else:
                    running[row] = state
            if running:
                yield from _decode(engine, running, progress, segment)
    finally:
        engine.release_all()


def _admit(
    engine: Engine, row: int, request: Request, began: float, progress: Progress, fresh: bool
) -> tuple[_Running, Literal["eos", "length"] | None]:
    admitted = time.perf_counter()
    prompt, new = request.token_ids, request.max_new_tokens
    first = engine.admit(row, request.index, prompt, new, progress.prefilled, fresh)
    if first < 0:
        raise _invalid_logits(request, "prefill")
    prefill_s = time.perf_counter() - admitted
    progress.decoded(1)
    reused = engine.pages.reused(row)
    state = _Running(request, admitted, admitted - began, prefill_s, reused, [first])
    if first in engine.eos:
        return state, "eos"
    return state, "length" if request.max_new_tokens == 1 else None


def _decode(
    engine: Engine, running: dict[int, _Running], progress: Progress, segment: int
) -> Iterator[Generated]:
    """Iterations until a request ends, with all of the host's work on the clock; then those ended.

    Where the engine allows it the host is one iteration behind: it queues the next before it reads
    the last. An iteration's time is then what lies between two readings.
    """
    ended: list[tuple[_Running, Literal["eos", "length"], float]] = []
    began = time.perf_counter()
    engine.launch()
    launched = 1
    while launched:
        if engine.overlaps and not ended:
            engine.launch()
            launched += 1
        result = engine.collect()
        launched -= 1
        decoded = _read(engine, running, result, progress)
        now = time.perf_counter()
        for row, state in decoded:
            state.step_s.append(now - began)
            if result.ended[row]:
                last = state.output_ids[-1]
                ended.append((state, "eos" if last in engine.eos else "length", now))
        began = now
        if not launched and not ended:
            engine.launch()
            launched += 1
    for state, reason, at in ended:
        yield state.finish(reason, at, segment)


def _read(
    engine: Engine, running: dict[int, _Running], result: StepResult, progress: Progress
) -> list[tuple[int, _Running]]:
    """Note what an iteration did to each request that was in it; rows of ended ones are emptied."""
    # the iteration that was queued when a request's end was not known yet leaves its row alone
    decoded = [(row, state) for row, state in running.items() if result.tokens[row]]
    split = engine.phases.split()
    for row, state in decoded:
        if result.invalid[row]:
            raise _invalid_logits(state.request, f"step {len(state.step_s)}")
        tokens = result.tokens[row]
        state.output_ids += tokens
        state.drafted.append(result.drafted[row])
        state.accepted.append(result.accepted[row])
        state.committed.append(len(tokens))
        state.running.append(len(decoded))
        state.splits.append(split)
        progress.decoded(len(tokens))
        if result.ended[row]:
            engine.release(row)
            del running[row]
    return decoded


def _invalid_logits(request: Request, where: str) -> NumericalError:
    return NumericalError(
        f"request {request.item_id!r} (index {request.index}), {where}: the target's logits are "
        "NaN or infinite; check the weights and the dtype"
    )
