"""OPT-Tree: the tree of drafts whose expected acceptance is the largest."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.methods.base import TreeDraft


def opt_tree(
    first: Tensor,
    expand: Callable[[Tensor, int, Tensor], Tensor],
    nodes: int,
    depth: int,
    threshold: float,
    enough: Callable[[Tensor], bool],
) -> TreeDraft:
    """Grow a tree for every row, a level at a time, and keep its best nodes.

    A node's worth is the drafter's probability of the path to it, which is what its acceptance is
    expected to add. Each level holds the best `nodes` children of the level before. A row stops
    growing when a level raises the worth of the best `nodes` of all levels by no more than
    `threshold`; what was computed until then competes for the tree.

    Parameters
    ----------
    first : Tensor
        `[R, V]`, log-probabilities after the root.
    expand : callable
        Given a level's tokens int64 `[R, nodes]`, its depth from 1, and which of the nodes of all
        levels so far each of them sees, bool `[R, nodes, depth * nodes]`, the log-probabilities
        `[R, nodes, V]` of what follows.
    nodes, depth : int
        Of a level and of the tree; levels, at most.
    threshold : float
        Expected tokens.
    enough : callable
        Told which rows still grow, bool `[R]`: whether to stop for all. What follows is the same
        whatever it says.

    Returns
    -------
    TreeDraft
        Up to `nodes` nodes a row, level after level.

    Notes
    -----
    Source: Wang et al., "OPT-Tree", 2024, arXiv 2406.17276. Of equal paths the shorter is kept, so
    that no node stands without its parent; a node sees its ancestors alone at every level. In
    SpecExtend's release the masks of levels add up, and the last level is dropped.
    """
    rows, device = len(first), first.device
    tokens, worth = _best(_usable(first), nodes)
    parents = torch.full_like(tokens, -1)
    all_tokens, all_parents, all_worth = [tokens], [parents], [worth]
    itself = torch.eye(nodes, dtype=torch.bool, device=device).expand(rows, -1, -1)
    seen = itself
    total = _total(all_worth, nodes)
    growing = total > threshold
    for level in range(1, depth):
        if enough(growing):
            break
        after = _usable(expand(tokens, level, seen))
        paths = worth[..., None] + after
        width = min(nodes, after.shape[-1])
        # of each node as many children as the level could take
        paths, token = paths.topk(width, dim=-1)
        best, worth = _best(paths.flatten(1), nodes)
        parent = best // width
        tokens = token.flatten(1).gather(1, best)
        worth = worth.masked_fill(~growing[:, None], -torch.inf)
        own = seen.gather(1, parent[..., None].expand(-1, -1, seen.shape[2]))
        seen = torch.cat([own, itself], 2)
        all_tokens.append(tokens)
        all_parents.append(parent + (level - 1) * nodes)
        all_worth.append(worth)
        grown = _total(all_worth, nodes)
        growing = growing & (grown - total > threshold)
        total = grown
    return _prune(
        torch.cat(all_tokens, 1), torch.cat(all_parents, 1), torch.cat(all_worth, 1), nodes
    )


def _usable(values: Tensor) -> Tensor:
    """Log-probabilities, none above 0 by rounding, so that no path is likelier than its parent."""
    return values.masked_fill(values.isnan(), -torch.inf).clamp(max=0)


def _best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of values `[R, n]`: their indices and values, -inf where n is less."""
    kept, index = values.topk(min(count, values.shape[1]), dim=1)
    missing = count - kept.shape[1]
    pad = torch.nn.functional.pad
    return pad(index, (0, missing)), pad(kept, (0, missing), value=-torch.inf)


def _total(worth: list[Tensor], nodes: int) -> Tensor:
    """Expected tokens `[R]` of the best `nodes` so far."""
    return torch.cat(worth, 1).topk(nodes, dim=1).values.exp().sum(1)


def _prune(tokens: Tensor, parents: Tensor, worth: Tensor, nodes: int) -> TreeDraft:
    """The best nodes, in the order of their levels, their parents renumbered."""
    size = worth.shape[1]
    # stable: among equals the earlier level, and so the parent, comes first
    ordered, order = worth.sort(dim=1, descending=True, stable=True)
    chosen = torch.where(ordered[:, :nodes] > -torch.inf, order[:, :nodes], size)
    chosen = chosen.sort(dim=1).values
    present = chosen < size
    place = torch.arange(nodes, device=worth.device).expand_as(chosen)
    renumbered = torch.full_like(torch.nn.functional.pad(worth, (0, 1)), -1, dtype=torch.int64)
    renumbered = renumbered.scatter(1, chosen, torch.where(present, place, -1))
    chosen = chosen.clamp(max=size - 1)
    parent = parents.gather(1, chosen)
    kept = torch.where(parent >= 0, renumbered.gather(1, parent.clamp(min=0)), -1)
    return TreeDraft(tokens.gather(1, chosen), kept, present.sum(1))
