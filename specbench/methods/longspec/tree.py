"""A tree of drafts grown level by level, the best by cumulative log-probability."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = -1
Score = Callable[[int, Tensor | None, Tensor | None], Tensor]


@dataclass(frozen=True)
class Tree:
    """Draft tokens of each row, parents before children.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, N]`.
    parents : Tensor
        int64 `[R, N]`, index of the node that a token follows; -1 for the last committed token.
    scores : Tensor
        `[R, N]`, the draft's log-probability of the path from the root to the node.
    paths : Tensor
        bool `[R, N, N]`, which nodes lie on a node's path from the root, itself included.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    paths: Tensor


def grow(shape: tuple[int, ...], score: Score) -> Tree:
    """The tree whose level d has the ``shape[d]`` best children of the nodes of level d - 1.

    Best is the highest sum of log-probabilities from the root on, over all nodes of the level above
    and all tokens. Nodes are never taken back, and siblings are distinct, as the exact acceptance
    of trees needs. Shapes are fixed and nothing is decided by the host.

    Parameters
    ----------
    shape : tuple of int
        Such as ``(4, 16, 16, 16, 16)``.
    score : callable
        ``score(level, tokens, paths)`` gives the draft's logits `[R, n, V]` after each node of the
        level above. For level 0 that is the last committed token, and both are None; after that the
        n nodes `tokens` `[R, n]`, and `paths` is bool `[R, n, m]`: which of the m nodes so far lie
        on each one's path.

    Raises
    ------
    ValueError
        A level without nodes.

    Notes
    -----
    Yang et al., "LongSpec", arXiv 2502.17421, has the shape 4, 16, 16, 16, 16.
    """
    if not shape or min(shape) < 1:
        raise ValueError(f"a tree of the shape {shape} has a level without nodes")
    logits = score(0, None, None)
    rows, device = logits.shape[0], logits.device
    tokens = torch.empty(rows, 0, dtype=torch.int64, device=device)
    parents = tokens
    scores = torch.empty(rows, 0, dtype=_wide(logits), device=device)
    paths = torch.empty(rows, 0, 0, dtype=torch.bool, device=device)
    above, begin = torch.zeros(rows, 1, dtype=scores.dtype, device=device), ROOT
    for level, width in enumerate(shape):
        if level:
            begin = tokens.shape[1] - shape[level - 1]
            logits = score(level, tokens[:, begin:], paths[:, begin:])
            above = scores[:, begin:]
        token, parent, best = best_children(logits, above, width)
        parent = parent + begin
        tokens, parents = torch.cat([tokens, token], 1), torch.cat([parents, parent], 1)
        scores = torch.cat([scores, best], 1)
        paths = _extend(paths, parent)
    return Tree(tokens, parents, scores, paths)


def _extend(paths: Tensor, parents: Tensor) -> Tensor:
    """`paths` `[R, m, m]` with nodes added that follow `parents` `[R, n]`: `[R, m + n, m + n]`."""
    known, added = paths.shape[1], parents.shape[1]
    if known:
        own = paths.gather(1, parents[..., None].expand(-1, -1, known))
    else:
        own = paths.new_zeros(len(paths), added, 0)
    itself = torch.eye(added, dtype=torch.bool, device=paths.device).expand(len(paths), -1, -1)
    return torch.cat([F.pad(paths, (0, added)), torch.cat([own, itself], 2)], 1)


def best_children(logits: Tensor, above: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `width` best of all nodes' children.

    Parameters
    ----------
    logits : Tensor
        `[R, n, V]`, the draft's after each node.
    above : Tensor
        `[R, n]`, log-probability of each node's path.
    width : int
        At most ``n * V``.

    Returns
    -------
    tokens, parents : Tensor
        int64 `[R, width]`; parents count the n nodes from 0.
    scores : Tensor
        `[R, width]`, descending.
    """
    # none beyond a node's own best `width` can be among the best of all
    own = min(width, logits.shape[-1])
    values, candidates = torch.log_softmax(logits, -1, dtype=_wide(logits)).topk(own, -1)
    total = (values + above[..., None]).flatten(1)
    scores, chosen = total.topk(width, -1)
    return candidates.flatten(1).gather(1, chosen), chosen // own, scores


def _wide(logits: Tensor) -> torch.dtype:
    # sums of a half type's log-probabilities would tie where the paths differ
    return torch.promote_types(logits.dtype, torch.float32)
