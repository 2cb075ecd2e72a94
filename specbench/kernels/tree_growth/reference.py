"""The best tokens after each node of a tree, and a level of them, in plain torch."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GrownTree:
    """The trees of R requests, of which a call of `add_level` writes one level.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, N]`, level after level.
    parents : Tensor
        int64 `[R, N]`, index of the node that a token follows; -1 for the root, which is the last
        committed token and no node.
    scores : Tensor
        float32 (float64 of such logits) `[R, N]`, log-probability of the path from the root to the
        node.
    paths : Tensor
        bool `[R, N, N]`, which nodes lie on a node's path from the root, itself included.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    paths: Tensor

    @classmethod
    def empty(
        cls,
        rows: int,
        nodes: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
    ) -> "GrownTree":
        """Memory for trees of `nodes` nodes whose scores are of `dtype`, nothing written."""
        shape = rows, nodes
        return cls(
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=dtype, device=device),
            torch.empty((*shape, nodes), dtype=torch.bool, device=device),
        )


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` most probable tokens of each row.

    Parameters
    ----------
    logits : Tensor
        `[n, V]`. -inf is a token that cannot be; a row with NaN, with +inf or without a finite
        logit gives any tokens of the vocabulary and any scores.
    k : int
        1 to V.

    Returns
    -------
    scores : Tensor
        float32 (float64 for such logits) `[n, k]`, log-probabilities, descending.
    tokens : Tensor
        int64 `[n, k]`, distinct; the lowest id first among equal logits.

    Raises
    ------
    ValueError
        Logits of another shape, or `k` tokens are more than there are.
    """
    check_top(logits, k)
    vocab = logits.shape[1]
    # log-probabilities of a half type would tie where the logits differ
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    least = wide.topk(k).values[:, -1:]
    # `topk` keeps any of equals. What is above its last value comes first, then what equals it,
    # and among these the lower id: a sort of the vocabulary takes fifty times as long.
    falling = torch.arange(vocab, 0, -1, dtype=torch.int32, device=logits.device)
    kept = ((wide > least) * vocab + (wide >= least) * falling).topk(k).indices
    # those above it by id, then those at it by id: a stable sort leaves equals in that order
    place = wide.gather(1, kept).sort(dim=-1, descending=True, stable=True).indices
    tokens = kept.gather(1, place)
    return wide.log_softmax(-1).gather(1, tokens), tokens


def add_level(tree: GrownTree, scores: Tensor, tokens: Tensor, begin: int, width: int) -> None:
    """Write the level whose nodes are the best children of the level above.

    Best is the highest log-probability of the path from the root on, over all children of all nodes
    above; of equals the first in the order of the nodes, and of a node's children.

    Parameters
    ----------
    tree : GrownTree
        Complete up to node `begin`; the `width` nodes from there on are written.
    scores : Tensor
        `[R, n, k]`, log-probabilities of each node's best children, descending, as `top_tokens`
        gives them. The n nodes are those right before `begin`, or the root alone where that is 0.
    tokens : Tensor
        int64 `[R, n, k]`.
    begin : int
        Index of the level's first node.
    width : int
        Nodes of the level, 1 to n * k. With k = min(width, V) no child beyond a node's own best k
        can be among the best of all.

    Raises
    ------
    ValueError
        Shapes or numbers that do not fit each other.

    Notes
    -----
    Yang et al., "LongSpec", arXiv 2502.17421, has levels of 4, 16, 16, 16 and 16 nodes.
    """
    check_level(tree, scores, tokens, begin, width)
    _, nodes, k = scores.shape
    end = begin + width
    if begin:
        scores = scores + tree.scores[:, begin - nodes : begin, None]
    best, chosen = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
    best, chosen = best[:, :width], chosen[:, :width]
    # -1 is the root, which stands right before node 0
    parents = chosen // k + begin - nodes
    tree.scores[:, begin:end] = best
    tree.tokens[:, begin:end] = tokens.flatten(1).gather(1, chosen)
    tree.parents[:, begin:end] = parents
    level = tree.paths[:, begin:end]
    level.zero_()
    if begin:
        above = tree.paths[:, :begin, :begin]
        level[..., :begin] = above.gather(1, parents[..., None].expand(-1, -1, begin))
    level.diagonal(begin, 1, 2).fill_(True)


def check_top(logits: Tensor, k: int) -> None:
    """Raise ValueError where rows of `logits` have no `k` tokens."""
    if logits.dim() != 2 or not 1 <= k <= logits.shape[1]:
        raise ValueError(f"no {k} best tokens of logits {list(logits.shape)}")


def check_level(tree: GrownTree, scores: Tensor, tokens: Tensor, begin: int, width: int) -> None:
    """Raise ValueError where a level of `tree` cannot be what is asked for."""
    rows, size = tree.tokens.shape
    if scores.dim() != 3 or scores.shape != tokens.shape or len(scores) != rows:
        raise ValueError(
            f"children of {rows} requests are [{rows}, n, k], not {list(scores.shape)} and "
            f"{list(tokens.shape)}"
        )
    if scores.dtype != tree.scores.dtype:
        raise ValueError(f"scores are {scores.dtype}, those of the tree {tree.scores.dtype}")
    _, nodes, k = scores.shape
    if not ((nodes == 1 and begin == 0) or 1 <= nodes <= begin):
        raise ValueError(f"there are no {nodes} nodes above node {begin}")
    if not 1 <= width <= nodes * k or begin + width > size:
        raise ValueError(
            f"no level of {width} nodes from node {begin} on: there are {nodes * k} children, and "
            f"{size} nodes in all"
        )
