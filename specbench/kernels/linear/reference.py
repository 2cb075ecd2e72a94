"""A projection with the norm before it and the residual addition behind it, in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.kernels.norm.reference import Prenormed, prenorm


def project(x: Tensor | Prenormed, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """``rms_norm(x) · weightᵀ + bias`` of prenormed rows, else without the norm."""
    if not isinstance(x, Prenormed):
        return F.linear(x, weight, bias)
    wide = torch.promote_types(weight.dtype, torch.float32)
    out = F.linear(x.rows.to(wide), weight.to(wide)) * x.root(eps)
    return (out if bias is None else out + bias).to(weight.dtype)


def linear_small(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 0.0,
    residual: Tensor | None = None,
) -> Tensor:
    """Project a few rows.

    Parameters
    ----------
    x : Tensor or Prenormed
        `[n, K]`, or rows within a norm that the projection completes.
    weight : Tensor
        `[N, K]`.
    bias : Tensor, optional
        `[N]`.
    eps : float
        Of the norm.
    residual : Tensor, optional
        `[n, N]`: the result is added to it in place. It must not share memory with `x`.

    Returns
    -------
    Tensor
        `[n, N]`; `residual` itself where there is one.
    """
    out = project(x, weight, bias, eps)
    if residual is None:
        return out
    residual += out
    return residual


def linear_prenorm(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor,
    eps: float = 0.0,
    residual: Tensor,
) -> Prenormed:
    """`linear_small` onto `residual`, and the beginning of the norm of weight `norm` `[N]`."""
    return prenorm(linear_small(x, weight, bias, eps=eps, residual=residual), norm)
