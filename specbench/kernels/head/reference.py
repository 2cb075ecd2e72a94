"""The LM head and the choice of a token in plain torch, in the terms of `engine/sampling.py`."""

from torch import Tensor

from specbench.engine.sampling import Sampling, argmax, draw, invalid, probabilities
from specbench.kernels.linear.reference import project
from specbench.kernels.norm.reference import Prenormed


def head_argmax(
    hidden: Tensor | Prenormed, weight: Tensor, *, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The best token of a few rows.

    Parameters
    ----------
    hidden : Tensor or Prenormed
        `[n, K]`, or rows within a norm that the projection completes.
    weight : Tensor
        `[V, K]`.
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
    logits = project(hidden, weight, None, eps)
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
