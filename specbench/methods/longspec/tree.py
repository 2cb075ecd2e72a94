"""A tree of drafts grown level by level, the best by cumulative log-probability."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.kernels.tree_growth import reference
from specbench.kernels.tree_growth.reference import GrownTree

Score = Callable[[int, Tensor | None, Tensor | None], Tensor]
TopTokens = Callable[[Tensor, int], tuple[Tensor, Tensor]]
AddLevel = Callable[[GrownTree, Tensor, Tensor, int, int], None]


def grow(
    shape: tuple[int, ...],
    score: Score,
    top_tokens: TopTokens = reference.top_tokens,
    add_level: AddLevel = reference.add_level,
) -> GrownTree:
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
    top_tokens, add_level : callable
        Those of `kernels.tree_growth`.

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
    rows, _, vocab = logits.shape
    wide = torch.promote_types(logits.dtype, torch.float32)
    tree = GrownTree.empty(rows, sum(shape), logits.device, wide)
    begin = 0
    for level, width in enumerate(shape):
        if level:
            above = slice(begin - shape[level - 1], begin)
            logits = score(level, tree.tokens[:, above], tree.paths[:, above, :begin])
        # none beyond a node's own best `width` can be among the best of all
        scores, tokens = top_tokens(logits.flatten(0, 1), min(width, vocab))
        children = (rows, logits.shape[1], scores.shape[1])
        add_level(tree, scores.view(children), tokens.view(children), begin, width)
        begin += width
    return tree
