"""An iteration as one CUDA graph, and its results on their way to the host."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE, CUDAGraph, Event

# runs before the capture: kernels are compiled, libraries take their memory
_WARM = 2

Result = TypeVar("Result")


def capture(
    iterate: Callable[[], Result], pool: "_POOL_HANDLE", warm: int = _WARM
) -> "tuple[CUDAGraph, Result]":
    """A graph of `iterate`, and what it returned: tensors in which each replay leaves its results.

    Parameters
    ----------
    iterate : callable
        Reads and writes device tensors of fixed shape and place; it is run before it is captured,
        so it must do no harm.
    pool
        Of `torch.cuda.graph_pool_handle`: memory of graphs that never run at the same time.
    warm : int
        How often it is run before.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            iterate()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with nothing_collected(), torch.cuda.graph(graph, pool=pool, stream=stream):
        result = iterate()
    return graph, result


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Free what is unreachable before, and not within: a freed graph breaks another's capture."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Outbox:
    """Results that the device has yet to finish, first in, first out.

    The copy to the host is queued behind the kernels, so that the host can queue the next iteration
    before it reads this one.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Tensor, Event | None]] = deque()
        self._spare: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, result: Tensor) -> None:
        """Queue the copy of a device tensor; one of the host's is taken as it is."""
        if result.device.type != "cuda":
            self._waiting.append((result, None))
            return
        fitting = bool(self._spare) and self._spare[-1].shape == result.shape
        if fitting:
            host = self._spare.pop()
        else:
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        host.copy_(result, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((host, event))

    def receive(self) -> list[list[int]]:
        """The oldest result, once it is there."""
        host, event = self._waiting.popleft()
        if event is None:
            return host.tolist()
        event.synchronize()
        rows: list[list[int]] = host.tolist()
        self._spare.append(host)
        return rows

    def clear(self) -> None:
        """Forget what is on its way."""
        self._waiting.clear()
