"""The memory that a call takes for a moment."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that `call` had allocated at once, beyond what there was."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    level = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak
