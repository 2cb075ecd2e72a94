"""The one acceptance rule for chains of drafts, and the one for trees."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.random import Purpose, uniform
from specbench.engine.sampling import Sampling, argmax, draw, probabilities, sample
from specbench.methods.base import Draft

Drawn = Callable[[Tensor, Sampling, Tensor], tuple[Tensor, Tensor]]


def accept_chain(
    logits: Tensor,
    draft: Draft | None,
    allowed: Tensor,
    sampling: Sampling,
    request: Tensor,
    start: Tensor,
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

    Returns
    -------
    accepted : Tensor
        int64 `[R]`, at most `allowed`.
    following : Tensor
        int64 `[R]`, the corrected or bonus token.
    """
    if sampling.greedy:
        return accept_greedy(argmax(logits), draft, allowed)
    if draft is None:
        following, _ = choose_token(logits[:, 0], sampling, request, start)
        return torch.zeros_like(allowed), following
    numbers = chain_numbers(sampling, request, start, draft.tokens.shape[1])
    p = probabilities(logits, sampling)
    return accept_sampled(p, draft.tokens, draft.probs, allowed, *numbers)


def chain_numbers(
    sampling: Sampling, request: Tensor, start: Tensor, gamma: int
) -> tuple[Tensor, Tensor]:
    """The numbers that judge drafts, `[R, gamma]`, and those that draw what follows each count."""
    offset = torch.arange(gamma + 1, device=request.device)
    keys = sampling.seed, request[:, None], start[:, None]
    u_accept = uniform(*keys, offset[:gamma], Purpose.ACCEPT)
    return u_accept, uniform(*keys, offset, Purpose.TARGET)


def accept_sampled(
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None,
    allowed: Tensor,
    u_accept: Tensor,
    u_next: Tensor,
) -> tuple[Tensor, Tensor]:
    """The rejection rule of `accept_chain` above temperature 0.

    Parameters
    ----------
    p : Tensor
        `[R, gamma + 1, V]`, the target's distributions.
    tokens : Tensor
        int64 `[R, gamma]`, gamma at least 1.
    q : Tensor or None
        `[R, gamma, V]`, what the drafts were drawn from; None for those that were not drawn.
    allowed : Tensor
        int64 `[R]`.
    u_accept, u_next : Tensor
        float64 `[R, gamma]` and `[R, gamma + 1]`: see `chain_numbers`.

    Returns
    -------
    accepted, following : Tensor
        As for `accept_chain`.
    """
    gamma = tokens.shape[1]
    q = _one_hot(tokens, p) if q is None else q
    accepted = _leading(_stands(p[:, :gamma], q, tokens, u_accept), allowed)
    rows = torch.arange(len(p), device=p.device)
    p_next = p[rows, accepted]
    q_next = q[rows, accepted.clamp(max=gamma - 1)]
    rejected = (accepted < allowed).unsqueeze(-1)
    weights = torch.where(rejected, residual(p_next, q_next), p_next)
    return accepted, draw(weights, u_next[rows, accepted])


def accept_tree(
    logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    valid: Tensor,
    deepest: int,
    sampling: Sampling,
    request: Tensor,
    start: Tensor,
    drawn: Drawn = sample,
) -> tuple[Tensor, Tensor, Tensor]:
    """How far down each tree the target goes, the token that follows, and the way.

    At each node the target's token is chosen: the arg-max at temperature 0, else a draw from p. The
    child that equals it is where the next is chosen; where there is none, it follows. Every token
    is the target's own, so the output follows p exactly, whatever the tree is, if it was fixed
    before the draws (SpecInfer's naive sampling: Miao et al., ASPLOS 2024).

    The draw at depth d has the number that a decode step at that position has (see `random`: one
    such draw is made of each position, and all of them are committed). So the output of a sampled
    request is the autoregressive one, token by token, and not only in distribution.

    Parameters
    ----------
    logits : Tensor
        `[R, N + 1, V]` of the root and the nodes.
    tokens, parents : Tensor
        int64 `[R, N + 1]`; column 0 is the root, its own parent.
    valid : Tensor
        bool `[R, N + 1]`, columns that may be reached.
    deepest : int
        The depth of the deepest valid node, at most.
    sampling : Sampling
        Temperature, top-k, top-p and seed.
    request, start : Tensor
        int64 `[R]`, the keys of the random numbers.
    drawn : callable
        What `sample` does, on another device.

    Returns
    -------
    accepted : Tensor
        int64 `[R]`.
    following : Tensor
        int64 `[R]`, the token after the last accepted one.
    path : Tensor
        int64 `[R, deepest]`, the accepted columns, from the root's child; the last stands again in
        the rest, the root where none was accepted.
    """
    if sampling.greedy:
        return accept_tree_greedy(argmax(logits), tokens, parents, valid, deepest)
    rows = torch.arange(len(logits), device=logits.device)
    column = torch.arange(tokens.shape[1], device=logits.device)
    node = torch.zeros_like(request)
    accepted = torch.zeros_like(request)
    following = torch.zeros_like(request)
    going = torch.ones_like(request, dtype=torch.bool)
    path = []
    for depth in range(deepest + 1):
        keys = request, start + depth
        token, _ = choose_token(logits[rows, node], sampling, *keys, drawn=drawn)
        following = torch.where(going, token, following)
        if depth == deepest:
            break
        child = (parents == node[:, None]) & (tokens == token[:, None]) & valid & (column > 0)
        going = going & child.any(1)
        node = torch.where(going, child.long().argmax(1), node)
        accepted = accepted + going
        path.append(node)
    return accepted, following, torch.stack(path, 1)


def accept_tree_greedy(
    best: Tensor, tokens: Tensor, parents: Tensor, valid: Tensor, deepest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`accept_tree` at temperature 0, of the arg-max int64 `[R, N + 1]` after root and nodes."""
    follows = valid & (tokens == best.gather(1, parents))
    # the root, its own parent, is no child
    follows[:, 0] = False
    node = torch.zeros_like(best[:, 0])
    accepted = torch.zeros_like(node)
    path = []
    for _ in range(deepest):
        # where the walk has ended there is none again
        child = follows & (parents == node[:, None])
        found = child.any(1)
        node = torch.where(found, child.long().argmax(1), node)
        accepted = accepted + found
        path.append(node)
    return accepted, best.gather(1, node[:, None]).squeeze(1), torch.stack(path, 1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)+ `[R, V]`, unnormalised; p itself where rounding leaves nothing above q."""
    positive = (p - q).clamp(min=0)
    return torch.where(positive.sum(-1, keepdim=True) > 0, positive, p)


def choose_token(
    logits: Tensor,
    sampling: Sampling,
    request: Tensor,
    start: Tensor,
    offset: int = 0,
    purpose: Purpose = Purpose.TARGET,
    drawn: Drawn = sample,
) -> tuple[Tensor, Tensor | None]:
    """Tokens `[R]` from logits `[R, V]`, and their distribution where they are random.

    By default the target's own, as a decode step at `start` chooses it.

    Parameters
    ----------
    logits, sampling
    request, start, offset, purpose
        The keys of the random numbers; see `random.uniform`.
    drawn : callable
        What `sample` does, on another device.
    """
    if sampling.greedy:
        return argmax(logits), None
    return drawn(logits, sampling, uniform(sampling.seed, request, start, offset, purpose))


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
