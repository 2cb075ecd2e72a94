"""The device time of a captured iteration: with the method's choosing, without it, and by phase."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.graph import capture
from specbench.engine.iteration import iterate
from specbench.engine.phases import Mark
from specbench.engine.trace import Kernel, Split, mean, split
from specbench.engine.traffic import Traffic, traffic
from specbench.errors import UsageError

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

_REPLAYS = 8
# of a capture, and of a traced graph
_ALONGSIDE = 4
# of each graph: a single one is off by several tenths of a percent
_TRACES = 4


@dataclass(frozen=True)
class Probe:
    """Seconds of one iteration of a full batch.

    Attributes
    ----------
    iterations : int
        Behind each median.
    iteration : float
        Median over the turns, of replays one after the other.
    frozen : float
        The same without what the method does to choose: no scores collected, the sets as they were.
    split, frozen_split : Split
        Means of traces of single replays of each.
    traffic : Traffic, optional
        The bytes of the iteration.
    copy_bytes_per_s : float, optional
        Bytes that a copy on the device reads and writes a second.
    """

    iterations: int
    iteration: float
    frozen: float
    split: Split
    frozen_split: Split
    traffic: Traffic | None = None
    copy_bytes_per_s: float | None = None

    @property
    def selection(self) -> float:
        """What choosing costs: the difference of the two."""
        return self.iteration - self.frozen

    @property
    def selection_in_trace(self) -> float:
        """The same from the traces: kernels of choosing, and what it adds to all else but sampling.

        Collecting adds to the verification, and to the drafts where they leave what normalises it;
        kernels that wait for one another add to the gaps.
        """
        with_it, without = self.split, self.frozen_split
        added = sum(with_it.phases[name] - without.phases[name] for name in ("draft", "verify"))
        return with_it.phases["selection"] + added + with_it.gaps - without.gaps


def probe(engine: Engine, turns: int = 5) -> Probe:
    """Measure the running batch, at the lengths that it has; it is put back after each turn.

    Parameters
    ----------
    engine : Engine
        On a CUDA device, with a method that can be captured and every row in use.
    turns : int
        The two graphs are timed in turns, so often.

    Raises
    ------
    UsageError
        A request has too few tokens to go for its row to stay in use through a turn.
    """
    batch = engine.batch
    most = int(batch.remaining.min()) // (engine.method.gamma + 1)
    if most <= _ALONGSIDE:
        raise UsageError(
            f"a request has {int(batch.remaining.min())} tokens to go, which is too few to time "
            "iterations of a full batch: raise --max-new-tokens"
        )
    replays = min(_REPLAYS, most)
    moved = traffic(engine)
    names = "tokens", "lengths", "remaining", "active"
    state = {name: getattr(batch, name).clone() for name in names}

    def restore() -> None:
        for name, kept in state.items():
            getattr(batch, name).copy_(kept)

    with torch.inference_mode():
        pool = torch.cuda.graph_pool_handle()
        plain, _ = capture(partial(iterate, engine), pool)
        with _frozen(engine):
            frozen, _ = capture(partial(iterate, engine), pool)
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(turns):
            for is_frozen, graph in ((False, plain), (True, frozen)):
                restore()
                times[is_frozen].append(_seconds(graph, replays))
        restore()
        marked = {False: _marked(engine)}
        with _frozen(engine):
            marked[True] = _marked(engine)
        splits: dict[bool, list[Split]] = {True: [], False: []}
        for _ in range(_TRACES):
            for is_frozen, traced in marked.items():
                restore()
                splits[is_frozen].append(_trace(traced))
        restore()
    plain_s, frozen_s = (median(times[is_frozen]) for is_frozen in (False, True))
    means = mean(splits[False]), mean(splits[True])
    return Probe(turns * replays, plain_s, frozen_s, *means, moved)


@contextmanager
def _frozen(engine: Engine) -> Iterator[None]:
    engine.frozen = True
    try:
        yield
    finally:
        engine.frozen = False


def _seconds(graph: "CUDAGraph", replays: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / replays


@dataclass(frozen=True)
class _Marked:
    """A graph with markers in it, what they stand for, and the memory that they touch."""

    graph: "CUDAGraph"
    marks: list[Mark]
    place: Tensor


def _marked(engine: Engine) -> _Marked:
    """Captured and replayed once."""
    from specbench.kernels.mark.triton import mark

    place = torch.zeros(1, dtype=torch.int32, device=engine.device)
    phases = engine.phases
    phases.mark = lambda: mark(place)

    def marked() -> Tensor:
        phases.marks.clear()
        return iterate(engine)

    try:
        graph, _ = capture(marked, torch.cuda.graph_pool_handle())
        graph.replay()
        torch.cuda.synchronize()
    finally:
        phases.mark = None
    return _Marked(graph, list(phases.marks), place)


def _trace(marked: _Marked) -> Split:
    """The split of one replay."""
    from torch.profiler import ProfilerActivity, profile

    from specbench.kernels.mark.triton import NAME

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        marked.graph.replay()
        torch.cuda.synchronize()
    kernels = [
        Kernel(event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        for event in trace.events()
        if event.device_type.name == "CUDA"
    ]
    return split(kernels, marked.marks, NAME)
