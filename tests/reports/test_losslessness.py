"""Reports on comparing outputs: what a comparison overlooks is not lossless."""

import pytest

from specbench.bench.lossless import Forced, first_divergence
from specbench.engine.engine import Engine
from specbench.engine.generate import Request
from tests.support.tiny import tiny_model


@pytest.mark.parametrize("extra", [[7], [7, 8, 9]])
def test_an_output_that_ends_early_or_late_differs(extra: list[int]) -> None:
    """Spec-Bench equal.py: zip() stops at the shorter of two outputs, whose end it never sees."""
    assert first_divergence([4, 5, 6], [4, 5, 6]) is None
    assert first_divergence([4, 5, 6], [4, 5, 6, *extra]) == 3
    assert first_divergence([4, 5, 6, *extra], [4, 5, 6]) == 3
    assert first_divergence([], [4]) == 0


def test_an_output_must_end_where_it_has_to() -> None:
    """mlx-lm#1423, openvino.genai#4476: each token right, and some missing, or some too many."""
    engine = Engine(tiny_model(7, eos_ids=(9,)), rows=1, max_len=32)
    complete, request = Forced(engine).complete, Request(0, "p", [1, 2], 4)
    assert complete(request, [3, 4, 5, 6])
    assert complete(request, [3, 9])
    assert not complete(request, [3, 4, 5])
    assert not complete(request, [3, 9, 4, 5])
    assert not complete(request, [3, 4, 5, 6, 7])
