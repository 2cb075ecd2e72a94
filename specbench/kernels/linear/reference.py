"""A projection with the norm before it and the residual addition behind it, in plain torch."""

import torch.nn.functional as F
from torch import Tensor


def linear_small(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
) -> Tensor:
    """Project a few rows.

    Parameters
    ----------
    x : Tensor
        `[n, K]`.
    weight : Tensor
        `[N, K]`.
    bias : Tensor, optional
        `[N]`.
    norm : Tensor, optional
        `[K]`: `x` goes through an RMS norm with this weight first.
    eps : float
        Of the norm.
    residual : Tensor, optional
        `[n, N]`: the result is added to it in place. It must not share memory with `x`.

    Returns
    -------
    Tensor
        `[n, N]`; `residual` itself where there is one.
    """
    if norm is not None:
        x = F.rms_norm(x, (x.shape[-1],), norm, eps)
    out = F.linear(x, weight, bias)
    if residual is None:
        return out
    residual += out
    return residual
