"""The one acceptance rule for chains of drafts."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.random import Purpose, uniform
from specbench.engine.sampling import Sampling, argmax, draw, probabilities
from specbench.methods.base import Draft


def accept_chain(
    logits: Tensor,
    draft: Draft | None,
    allowed: Tensor,
    sampling: Sampling,
    request: Tensor,
    start: Tensor,
    distribution: Callable[[Tensor, Sampling], Tensor] = probabilities,
) -> tuple[Tensor, Tensor]:
    """How many drafts stand, and the token that follows them.

    Standard speculative sampling (Leviathan et al. 2023; Chen et al. 2023): draft d with
    distribution q is accepted with probability min(1, p(d) / q(d)); the token after the first
    rejection comes from norm((p - q)+), and the one after a full acceptance from p. At temperature
    0, a draft stands where it is the arg-max. What is committed follows p exactly, whatever q is.

    Parameters
    ----------
    logits : Tensor
        `[R, gamma + 1, V]`; row i judges draft i, row gamma gives the bonus token.
    draft : Draft or None
        `[R, gamma]` tokens; None where gamma is 0.
    allowed : Tensor
        int64 `[R]`, how many of a row's drafts count.
    sampling : Sampling
        Temperature, top-k, top-p and seed.
    request, start : Tensor
        int64 `[R]`, the keys of the random numbers.
    distribution : callable
        What `probabilities` does, on another device.

    Returns
    -------
    accepted : Tensor
        int64 `[R]`, at most `allowed`.
    following : Tensor
        int64 `[R]`, the corrected or bonus token.
    """
    if sampling.greedy:
        return accept_greedy(argmax(logits), draft, allowed)
    p = distribution(logits, sampling)
    if draft is None:
        accepted = torch.zeros_like(allowed)
        following = draw(p[:, 0], uniform(sampling.seed, request, start, 0, Purpose.TARGET))
        return accepted, following
    gamma = draft.tokens.shape[1]
    q = draft.probs if draft.probs is not None else _one_hot(draft.tokens, p)
    offset = torch.arange(gamma, device=logits.device)
    u = uniform(sampling.seed, request[:, None], start[:, None], offset, Purpose.ACCEPT)
    stands = _stands(p[:, :gamma], q, draft.tokens, u)
    accepted = _leading(stands, allowed)
    rows = torch.arange(len(p), device=logits.device)
    p_next = p[rows, accepted]
    q_next = q[rows, accepted.clamp(max=gamma - 1)]
    rejected = (accepted < allowed).unsqueeze(-1)
    weights = torch.where(rejected, residual(p_next, q_next), p_next)
    u = uniform(sampling.seed, request, start, accepted, Purpose.TARGET)
    return accepted, draw(weights, u)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)+ `[R, V]`, unnormalised; p itself where rounding leaves nothing above q."""
    positive = (p - q).clamp(min=0)
    return torch.where(positive.sum(-1, keepdim=True) > 0, positive, p)


def accept_greedy(best: Tensor, draft: Draft | None, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The same at temperature 0, of the arg-max `[R, gamma + 1]` after each row's tokens."""
    if draft is None:
        return torch.zeros_like(allowed), best[:, 0]
    accepted = _leading(draft.tokens == best[:, :-1], allowed)
    return accepted, best.gather(1, accepted[:, None]).squeeze(1)


def _stands(p: Tensor, q: Tensor, tokens: Tensor, u: Tensor) -> Tensor:
    token = tokens.unsqueeze(-1)
    p_token, q_token = p.gather(-1, token).squeeze(-1), q.gather(-1, token).squeeze(-1)
    return u * q_token < p_token


def _leading(stands: Tensor, allowed: Tensor) -> Tensor:
    """How many drafts stand before the first that does not, `[R]`."""
    position = torch.arange(stands.shape[1], device=stands.device)
    counted = stands & (position < allowed[:, None])
    return counted.long().cumprod(1).sum(1)


def _one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    q = like.new_zeros(*tokens.shape, like.shape[-1])
    return q.scatter_(-1, tokens.unsqueeze(-1), 1)
