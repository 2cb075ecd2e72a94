"""RMS norm of the residual stream in plain torch, as the model computes it."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row over its root mean square, times `weight`.

    Parameters
    ----------
    x : Tensor
        `[n, hidden]`.
    weight : Tensor
        `[hidden]`.
    eps : float
        Added to the mean of squares.

    Returns
    -------
    Tensor
        `[n, hidden]` in the dtype of `x`.
    """
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` `[n, hidden]` to the residual stream `x` in place, and return its norm."""
    x += delta
    return rms_norm(x, weight, eps)
