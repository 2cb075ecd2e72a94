"""The gated half of the MLP in plain torch, as the model computes it."""

import torch.nn.functional as F
from torch import Tensor

from specbench.kernels.linear.reference import project
from specbench.kernels.norm.reference import Prenormed


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``.

    Parameters
    ----------
    gate_up : Tensor
        `[n, 2 inner]`: gate, then up.

    Returns
    -------
    Tensor
        `[n, inner]`.
    """
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def gate_up_small(
    x: Tensor | Prenormed, weight: Tensor, bias: Tensor | None = None, *, eps: float = 0.0
) -> Tensor:
    """Project a few rows to gate and up, and return ``silu(gate) * up``.

    Parameters
    ----------
    x : Tensor or Prenormed
        `[n, hidden]`, or rows within a norm that the projection completes.
    weight : Tensor
        `[2 inner, hidden]`: rows of gate, then up.
    bias : Tensor, optional
        `[2 inner]`.
    eps : float
        Of the norm.

    Returns
    -------
    Tensor
        `[n, inner]`.
    """
    return silu_mul(project(x, weight, bias, eps))
