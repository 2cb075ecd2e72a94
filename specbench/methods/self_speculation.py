"""What methods share whose drafter is the target itself, reading a part of its KV."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.forward import SparseAttention
from specbench.engine.model import Attention
from specbench.methods.base import Draft, Tunable

TUNABLE = Tunable(
    budget="kept_ratio",
    ratios=(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4),
    gammas=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    probe_gamma=6,
)
"""One grid for all of them, so that each is compared at its own best."""


def draft_chain(
    engine: Engine, gamma: int, attention: Callable[[Tensor, Tensor, int], Attention]
) -> Draft:
    """Gamma tokens for every row, one forward each, their KV at lookahead positions of the cache.

    Parameters
    ----------
    engine : Engine
    gamma : int
        At least 1.
    attention : callable
        Called once a step with the position `[R, 1]` of the token that is fed, with which rows
        still draft, bool `[R, 1]`, and with the step's number; returns what attends for it.
    """
    batch = engine.batch
    allowed = batch.allowed(gamma)
    # of all steps at once: each operation less is a launch less
    steps = torch.arange(gamma, device=allowed.device)[:, None]
    positions, drafting = (batch.lengths + steps)[..., None], (steps < allowed)[..., None]
    fed = engine.within(positions)
    return _chain(engine, fed, lambda step: attention(positions[step], drafting[step], step))


def draft_sparsely(
    engine: Engine, gamma: int, selected: Tensor, reach: Tensor, lse: Tensor | None = None
) -> Draft:
    """Gamma tokens for every row, each reading selected entries and a tail that ends in itself.

    Parameters
    ----------
    engine : Engine
    gamma : int
        At least 1.
    selected : Tensor
        Integers `[layers, R, S, K]`, slots, -1 for none.
    reach : Tensor
        int64 `[R, T]`, the positions behind the selected ones: a step reads those up to that of
        the token it is fed. Besides, ``gamma * R * T`` slots are held.
    lse : Tensor, optional
        `[layers, R, gamma, H]`, where the log-sum-exps of each step's logits are left.
    """
    steps = engine.compute.draft_steps(engine.batch, gamma, reach, engine.max_len)

    def attention(step: int) -> SparseAttention:
        left = None if lse is None else lse[:, :, step]
        lists = selected, steps.tails[step], steps.own[step]
        return SparseAttention(engine.cache, *lists, engine.scale, left)

    return _chain(engine, steps.fed, attention)


def _chain(engine: Engine, fed: Tensor, attention: Callable[[int], Attention]) -> Draft:
    """Drafts of steps whose tokens stand at positions `fed` `[gamma, R, 1]`."""
    token = engine.batch.tokens
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    for step, position in enumerate(fed):
        token, q = engine.next_tokens(token, position, attention(step), step)
        tokens.append(token)
        if q is not None:
            probs.append(q)
    return Draft(torch.stack(tokens, 1), torch.stack(probs, 1) if probs else None)


def share_of(length: Tensor, ratio: float, least: int) -> Tensor:
    """``ceil(ratio * length)`` entries, at least `least`, at most `length`; int64."""
    # 0.07 * 100 is a little above 7 in floating point: not a reason to keep an eighth
    share = torch.ceil(ratio * length.double() - 1e-9).long()
    return torch.minimum(share.clamp(min=least), length)
