"""RMS norm of the residual stream in plain torch, as the model computes it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Prenormed:
    """Rows on their way through an RMS norm: times its weight, not yet over their roots.

    A product with them is divided afterwards, so that neither the pass that makes them nor the one
    that reads them has to see a whole row first.

    Attributes
    ----------
    rows : Tensor
        `[n, hidden]`, ``x * weight`` in the dtype of x.
    squares : Tensor
        float32 `[parts, m]`, m at least n: sums of squares of x's rows, by parts of the row.
    """

    rows: Tensor
    squares: Tensor

    def root(self, eps: float) -> Tensor:
        """What a product with `rows` is to be multiplied by, `[n, 1]` in float32 or better."""
        n, hidden = self.rows.shape
        return (self.squares[:, :n].sum(0) / hidden + eps).rsqrt()[:, None]


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


def embed_prenorm(tokens: Tensor, table: Tensor, weight: Tensor) -> tuple[Tensor, Prenormed]:
    """The stream that tokens `[n]` begin with, rows of `table`, and the norm begun on it."""
    x = F.embedding(tokens, table)
    return x, prenorm(x, weight)


def prenorm(x: Tensor, weight: Tensor, delta: Tensor | None = None) -> Prenormed:
    """Add `delta` to `x` in place, if there is one, and prepare the norm of `x` `[n, hidden]`."""
    if delta is not None:
        x += delta
    wide = x if x.dtype == torch.float64 else x.float()
    return Prenormed(x * weight, wide.square().sum(1)[None])
