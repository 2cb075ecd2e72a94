"""A trace is cut where the markers say, and nothing is counted twice or lost."""

import pytest

from specbench.engine.phases import Mark
from specbench.engine.trace import Kernel, mean, split
from specbench.errors import SpecbenchError

MARK = "specbench_mark"


def trace(*rows: tuple[str, float, float]) -> list[Kernel]:
    return [Kernel(*row) for row in rows]


def test_phases_inner_phases_other_and_gaps() -> None:
    kernels = trace(
        ("copy", 0, 1),
        (MARK, 1, 2),
        ("draft", 2, 5),
        ("draft", 6, 7),
        (MARK, 7, 8),
        (MARK, 8, 9),
        ("attend", 9, 19),
        (MARK, 19, 20),
        ("rank", 20, 24),
        (MARK, 24, 25),
        ("head", 25, 26),
        (MARK, 26, 27),
        ("pack", 29, 30),
    )
    marks = [
        Mark("draft", True),
        Mark("draft", False),
        Mark("verify", True),
        Mark("selection", True),
        Mark("selection", False),
        Mark("verify", False),
    ]
    found = split(reversed(kernels), marks, MARK)
    assert found.phases == {"draft": 4, "verify": 11, "selection": 4, "sampling": 0}
    assert (found.other, found.gaps) == (2, 1 + 2)
    assert found.total == 4 + 11 + 4 + 2 + 3
    assert found.by_kernel["draft", "draft"] == 4
    assert found.by_kernel["other", "pack"] == 1


def test_overlapping_kernels_share_their_time() -> None:
    found = split(trace(("a", 0, 4), ("b", 3, 6), ("c", 4, 5)), [], MARK)
    assert (found.other, found.gaps, found.total) == (6, 0, 6)
    assert found.by_kernel == {("other", "a"): 4, ("other", "b"): 2, ("other", "c"): 0}


def test_a_trace_of_another_graph_is_refused() -> None:
    with pytest.raises(SpecbenchError, match="1 of 2 markers"):
        split(trace((MARK, 0, 1)), [Mark("draft", True), Mark("draft", False)], MARK)


def test_the_mean_of_traces_sums_as_they_do() -> None:
    marks = [Mark("draft", True), Mark("draft", False)]
    one = split(trace((MARK, 0, 1), ("a", 1, 3), (MARK, 3, 4), ("b", 5, 6)), marks, MARK)
    other = split(trace((MARK, 0, 1), ("a", 1, 2), ("c", 2, 6), (MARK, 6, 7)), marks, MARK)
    found = mean([one, other])
    assert found.phases["draft"] == (2 + 5) / 2
    assert found.by_kernel == {("draft", "a"): 1.5, ("other", "b"): 0.5, ("draft", "c"): 2}
    assert found.total == sum(found.phases.values()) + found.other + found.gaps
    with pytest.raises(ValueError, match="no traces"):
        mean([])
