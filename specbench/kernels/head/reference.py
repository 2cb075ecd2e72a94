"""The LM head and the choice of a token in plain torch, in the terms of `engine/sampling.py`."""

import torch.nn.functional as F
from torch import Tensor

from specbench.engine.sampling import Sampling, argmax, draw, invalid, probabilities


def head_argmax(
    hidden: Tensor, weight: Tensor, *, norm: Tensor | None = None, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The best token of a few rows.

    Parameters
    ----------
    hidden : Tensor
        `[n, K]`.
    weight : Tensor
        `[V, K]`.
    norm : Tensor, optional
        `[K]`: `hidden` goes through an RMS norm with this weight first.
    eps : float
        Of the norm.

    Returns
    -------
    token : Tensor
        int64 `[n]`, the arg-max of the logits in the model's dtype; the lowest id among equals,
        and the first NaN where there is one.
    bad : Tensor
        bool `[n]`, rows that no token can be chosen from, as `sampling.invalid` has it.
    """
    if norm is not None:
        hidden = F.rms_norm(hidden, (hidden.shape[-1],), norm, eps)
    logits = F.linear(hidden, weight)
    return argmax(logits), invalid(logits)


def sample(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token of each row after temperature, top-k and top-p, and what it was drawn from.

    Parameters
    ----------
    logits : Tensor
        `[n, V]`.
    sampling : Sampling
        A temperature above 0.
    u : Tensor
        float64 `[n]` in [0, 1).

    Returns
    -------
    token : Tensor
        int64 `[n]`; 0 for a bad row.
    probs : Tensor
        `[n, V]`, as `sampling.probabilities` gives them; NaN throughout a bad row.
    bad : Tensor
        bool `[n]`, as `sampling.invalid` has it.
    """
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    probs = probabilities(logits, sampling)
    return draw(probs, u), probs, invalid(logits)
