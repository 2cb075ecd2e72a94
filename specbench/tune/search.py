"""Which points of a grid to measure next, given those that were measured."""

from collections.abc import Mapping, Sequence

from specbench.tune.plateau import Histograms, on_plateau

Value = float | None
"""A merit; None for a point that failed."""


def climb(size: int, values: Mapping[int, Value], start: int, margin: float) -> list[int]:
    """Points around the best that are still worth measuring, the most promising first.

    The grid is taken to have one hill. From the best point outwards, a side is done where a point
    lies below the best by more than `margin`, where two neighbours failed, or where the grid ends.

    Parameters
    ----------
    size : int
        Points of the grid.
    values : mapping of int to float or None
        What was measured, by index.
    start : int
        Where to begin.
    margin : float
        Share of the best that noise may explain.

    Returns
    -------
    list of int
        At most one index on each side, the nearer first; empty where the best is bracketed.
    """
    known = {at: value for at, value in values.items() if value is not None}
    if not known:
        untried = sorted((i for i in range(size) if i not in values), key=lambda i: abs(i - start))
        return untried[:1]
    best = max(known, key=lambda at: (known[at], -at))
    floor = known[best] * (1 - margin)
    found = []
    for direction in (-1, 1):
        at, failures = best + direction, 0
        while 0 <= at < size and at in values and failures < 2:
            value = values[at]
            failures = failures + 1 if value is None else 0
            if value is not None and value < floor:
                break
            at += direction
        else:
            if 0 <= at < size and failures < 2:
                found.append(at)
    return sorted(found, key=lambda at: (abs(at - best), at))


def ascend(
    ratios: Sequence[float], measured: Mapping[float, Histograms], failed: Sequence[float]
) -> list[float]:
    """Ratios still to be measured for the plateau, the first one first.

    The largest comes first, since it shows how high the acceptance length may rise; then upwards
    from the smallest, until two in a row are on the plateau: one alone may be luck. What follows
    the first one is for other workers.
    """
    left = [ratio for ratio in ratios if ratio not in failed]
    untried = [ratio for ratio in left if ratio not in measured]
    if left and left[-1] in untried:
        return [left[-1], *untried[:-1]]
    level = on_plateau(measured)
    row = 0
    for ratio in left:
        if ratio in untried:
            return untried
        row = row + 1 if ratio in level else 0
        if row == 2:
            break
    return []
