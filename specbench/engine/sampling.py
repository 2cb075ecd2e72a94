"""From logits to a distribution and a token; ties and invalid rows are decided here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config import RunConfig


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: temperature 0 is the arg-max; top_k 0 and top_p 1 keep all."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @classmethod
    def from_config(cls, config: RunConfig, repeat: int = 0) -> "Sampling":
        """The sampling of one repeat; each repeat draws other numbers."""
        seed = (config.seed + repeat * 0x9E3779B97F4A7C15) & (2**64 - 1)
        return cls(config.temperature, config.top_p, config.top_k, seed)

    @property
    def greedy(self) -> bool:
        """Whether the choice is the arg-max."""
        return self.temperature == 0

    def draws_like(self, other: "Sampling") -> bool:
        """Whether the same code with the same numbers draws for both; the arg-max needs none."""
        return self == other or (self.greedy and other.greedy)


def argmax(logits: Tensor) -> Tensor:
    """The best token `[...]` of logits `[..., V]`; the lowest id among equals."""
    return logits.argmax(-1)


def invalid(logits: Tensor) -> Tensor:
    """Rows `[...]` that no token can be chosen from: a NaN, an infinite maximum, all -inf."""
    return ~logits.amax(-1).isfinite()


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution after temperature, top-k and top-p, in that order.

    Parameters
    ----------
    logits : Tensor
        float `[..., V]`.
    sampling : Sampling
        A temperature above 0.

    Returns
    -------
    Tensor
        `[..., V]`, each row sums to 1. Tokens that tie with the k-th are kept; top-p keeps the
        shortest list of best tokens whose mass reaches `top_p`.
    """
    # below the type's smallest number both would round to 0, and 0 / 0 is no distribution
    tiny = torch.finfo(logits.dtype).tiny
    temperature, top_p = max(sampling.temperature, tiny), max(sampling.top_p, tiny)
    # shifted first, so that a small temperature overflows towards -inf only
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    probs = torch.softmax(scaled, dim=-1)
    if top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        # the best token stays even where its own mass exceeds top_p
        drop = (before >= top_p).scatter(-1, order, before >= top_p)
        probs = probs.masked_fill(drop, 0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def sample(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens `[R]` drawn from logits `[R, V]` by numbers `u` `[R]`, and their `probabilities`."""
    probs = probabilities(logits, sampling)
    return draw(probs, u), probs


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Tokens drawn from unnormalised weights by inverting the cumulative sum.

    Parameters
    ----------
    weights : Tensor
        `[..., V]`, non-negative, with a positive sum.
    u : Tensor
        float64 `[...]` in [0, 1).

    Returns
    -------
    Tensor
        int64 `[...]`; never a token of weight 0.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1:]
    token = torch.searchsorted(cumulative, u.unsqueeze(-1) * total, right=True)
    last = (cumulative < total).sum(-1, keepdim=True)
    return torch.minimum(token, last).squeeze(-1)
