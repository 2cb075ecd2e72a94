"""Where the device time of a captured iteration goes: a trace, cut at the markers in it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specbench.engine.phases import PHASES, Mark, Phase
from specbench.errors import SpecbenchError


@dataclass(frozen=True)
class Kernel:
    """One kernel of a trace; seconds on the device's clock."""

    name: str
    begin: float
    end: float


@dataclass
class Split:
    """Seconds of one iteration.

    Attributes
    ----------
    phases : dict of str to float
        Kernels of each phase, those of an inner phase counted as its own.
    other : float
        Kernels outside of all phases.
    gaps : float
        When no kernel ran, between the first and the last.
    by_kernel : dict of (str, str) to float
        Kernels by phase ("other" outside) and name.
    total : float
        From the first kernel's beginning to the last one's end, markers left out.
    """

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    other: float = 0.0
    gaps: float = 0.0
    by_kernel: dict[tuple[str, str], float] = field(default_factory=dict)
    total: float = 0.0


def split(kernels: Iterable[Kernel], marks: Sequence[Mark], marker: str) -> Split:
    """Cut the trace of one replay at its markers.

    Where kernels overlap, the time that they share counts once, for the earlier one. A marker takes
    no time: neither its own nor the gap behind it.

    Parameters
    ----------
    kernels : iterable of Kernel
        Of one replay.
    marks : sequence of Mark
        What the markers stand for, in order.
    marker : str
        The name of the markers' kernel.

    Raises
    ------
    SpecbenchError
        The trace has another number of markers: it is of another graph, or incomplete.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.begin)
    found = sum(kernel.name == marker for kernel in ordered)
    if found != len(marks):
        raise SpecbenchError(
            f"the trace holds {found} of {len(marks)} markers: it was cut short or is of another "
            "graph; measure again"
        )
    result, inside, upcoming = Split(), list[Phase](), iter(marks)
    clock = ordered[0].begin if ordered else 0.0
    for kernel in ordered:
        if kernel.name == marker:
            mark = next(upcoming)
            if mark.begins:
                inside.append(mark.phase)
            else:
                inside.pop()
            clock = max(clock, kernel.end)
            continue
        gap, spent = max(kernel.begin - clock, 0.0), max(kernel.end - max(kernel.begin, clock), 0.0)
        result.gaps += gap
        result.total += gap + spent
        phase = inside[-1] if inside else "other"
        if inside:
            result.phases[phase] += spent
        else:
            result.other += spent
        key = phase, kernel.name
        result.by_kernel[key] = result.by_kernel.get(key, 0.0) + spent
        clock = max(clock, kernel.end)
    return result


def mean(splits: Sequence[Split]) -> Split:
    """Of replays of one graph, part by part, so that the parts still sum to the whole.

    Raises
    ------
    ValueError
        There are none.
    """
    if not splits:
        raise ValueError("no traces to take the mean of")
    names = {key: None for one in splits for key in one.by_kernel}
    count = len(splits)
    return Split(
        {phase: sum(one.phases[phase] for one in splits) / count for phase in PHASES},
        sum(one.other for one in splits) / count,
        sum(one.gaps for one in splits) / count,
        {key: sum(one.by_kernel.get(key, 0.0) for one in splits) / count for key in names},
        sum(one.total for one in splits) / count,
    )
