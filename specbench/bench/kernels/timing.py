"""Device time of kernels as replays of CUDA graphs, taken in turns."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]

_WINDOW_S = 0.02  # replays of one timing together: events resolve half a microsecond
_WARM_CALLS = 3


def side_by_side(kernels: Mapping[str, Sequence[Call]], repeats: int = 7) -> dict[str, list[float]]:
    """Seconds of one call of each kernel, a value a repeat, the kernels in turn within a repeat.

    Parameters
    ----------
    kernels : mapping of str to sequence of callable
        A kernel's calls, which its graph makes one after the other: the same work on different
        memory, so that no call finds its data in the cache.
    repeats : int
        Values of each kernel.

    Returns
    -------
    dict of str to list of float
    """
    graphs = {name: capture(calls) for name, calls in kernels.items()}
    replays = {
        name: max(1, round(_WINDOW_S / max(_seconds(graph, 1), 1e-6)))
        for name, graph in graphs.items()
    }
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(repeats):
        for name, graph in graphs.items():
            total = _seconds(graph, replays[name])
            times[name].append(total / (replays[name] * len(kernels[name])))
    return times


def capture(calls: Sequence[Call]) -> "torch.cuda.CUDAGraph":
    """A graph that makes `calls` in turn, warmed first: nothing may be compiled in it."""
    import torch

    from specbench.engine.graph import capture as capture_graph

    def in_turn() -> None:
        for call in calls:
            call()

    graph, _ = capture_graph(in_turn, torch.cuda.graph_pool_handle(), _WARM_CALLS)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def copy_bandwidth(nbytes: int = 2**31, repeats: int = 7) -> list[float]:
    """Bytes read and written a second by a large device-to-device copy, a value a repeat.

    The faster of the driver's copy and a kernel's: which one that is depends on the device.
    """
    import torch

    source = torch.randint(2**31 - 1, (nbytes // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copies: dict[str, list[Call]] = {
        "driver": [lambda: target.copy_(source)],
        "kernel": [lambda: torch.bitwise_not(source, out=target)],
    }
    times = side_by_side(copies, repeats)
    return [2 * nbytes / min(both) for both in zip(*times.values(), strict=True)]


def _seconds(graph: "torch.cuda.CUDAGraph", replays: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3
