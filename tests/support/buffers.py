"""Inputs for kernels: on the GPU where there is one, in memory that is NaN all around."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.paged import randn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# a few units in the last place: sums in another order may round to the neighbour
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2**-7, 2**-7)}
KERNEL_DTYPES = list(TOLERANCE)


def inputs(seed: int, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers, rows `[..., n]` of a wider buffer whose rest is NaN."""
    *lead, width = shape
    buffer = torch.full((*lead, width + 16), torch.nan, dtype=dtype, device=DEVICE)
    view = buffer[..., :width]
    view.copy_(randn(seed, *shape) * scale)
    return view


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal up to the rounding of sums that are taken in another order."""
    relative, absolute = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=relative, atol=absolute)


def as_accurate(actual: Tensor, reference: Tensor, exact: Tensor, terms: int) -> None:
    """No further from the float64 truth than the reference is, which rounds elsewhere.

    Of sums of `terms` products, which a kernel may add in float32 one after another: their errors
    grow with the square root.
    """
    assert actual.dtype == reference.dtype
    error, allowed = ((x.double() - exact).norm() for x in (actual, reference))
    rounding = torch.finfo(actual.dtype).eps + torch.finfo(torch.float32).eps * terms**0.5
    slack = rounding * exact.norm()
    assert error <= 1.25 * allowed + slack, f"{error:.3g} beside {allowed:.3g}"


def poison_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` gives NaN from now on: an output that is not written shows."""
    empty = torch.empty

    def poisoned(*shape: Any, **options: Any) -> Tensor:
        out = empty(*shape, **options)
        return out.fill_(torch.nan) if out.is_floating_point() else out.fill_(1)

    monkeypatch.setattr(torch, "empty", poisoned)
