"""What methods share whose drafter is the target itself, reading a part of its KV."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.model import Attention
from specbench.methods.base import Draft


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
    token = batch.tokens
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    # of all steps at once: each operation less is a launch less
    steps = torch.arange(gamma, device=allowed.device)[:, None]
    positions, drafting = (batch.lengths + steps)[..., None], (steps < allowed)[..., None]
    fed = engine.within(positions)
    for step in range(gamma):
        attend = attention(positions[step], drafting[step], step)
        token, q = engine.next_tokens(token, fed[step], attend, step)
        tokens.append(token)
        if q is not None:
            probs.append(q)
    return Draft(torch.stack(tokens, 1), torch.stack(probs, 1) if probs else None)


def share_of(length: Tensor, ratio: float, least: int) -> Tensor:
    """``ceil(ratio * length)`` entries, at least `least`, at most `length`; int64."""
    # 0.07 * 100 is a little above 7 in floating point: not a reason to keep an eighth
    share = torch.ceil(ratio * length.double() - 1e-9).long()
    return torch.minimum(share.clamp(min=least), length)
