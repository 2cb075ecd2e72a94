"""The gated half of the MLP in plain torch, as the model computes it."""

import torch.nn.functional as F
from torch import Tensor


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
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Project a few rows to gate and up, and return ``silu(gate) * up``.

    Parameters
    ----------
    x : Tensor
        `[n, hidden]`.
    weight : Tensor
        `[2 inner, hidden]`: rows of gate, then up.
    bias : Tensor, optional
        `[2 inner]`.
    norm : Tensor, optional
        `[hidden]`: `x` goes through an RMS norm with this weight first.
    eps : float
        Of the norm.

    Returns
    -------
    Tensor
        `[n, inner]`.
    """
    if norm is not None:
        x = F.rms_norm(x, (x.shape[-1],), norm, eps)
    return silu_mul(F.linear(x, weight, bias))
