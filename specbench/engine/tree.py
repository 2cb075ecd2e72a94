"""Trees of drafts in the engine: their shape as masks, and what becomes of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.acceptance import Drawn, accept_tree, accept_tree_greedy
from specbench.engine.batch import Batch
from specbench.engine.chunk import pack
from specbench.engine.kv_cache import KVCache
from specbench.engine.sampling import Sampling, invalid
from specbench.methods.base import TreeDraft


@dataclass(frozen=True)
class Tree:
    """The root and the nodes of each row's tree, as one verification sees them.

    Attributes
    ----------
    tokens, parents, depth : Tensor
        int64 `[R, N + 1]`; column 0 is the root, its own parent.
    mask : Tensor
        bool `[R, N + 1, N + 1]`: a row sees its ancestors and itself.
    valid : Tensor
        bool `[R, N + 1]`: nodes that are drafts and no deeper than a row may commit; and the root.
    """

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    mask: Tensor
    valid: Tensor


@dataclass(frozen=True)
class TreeChunk(Tree):
    """A tree with all that its verification reads, and what the end of an iteration needs.

    Attributes
    ----------
    positions : Tensor
        int64 `[R, N + 1]`, the root's plus the depth, within the tables also where masked.
    slots : Tensor
        int64 `[R, N + 1]`, of entries after the request's own; -1 where there is no request.
    kv_lens, q_lens : Tensor
        int64 `[R]`, entries with those of the tree, and its rows; 0 without a request.
    allowed : Tensor
        int64 `[R]`, the most drafts that a row may commit.
    drafted : Tensor
        int64 `[R]`, the depth of the deepest valid node.
    """

    positions: Tensor
    slots: Tensor
    kv_lens: Tensor
    q_lens: Tensor
    allowed: Tensor
    drafted: Tensor


def build_tree(root: Tensor, draft: TreeDraft, allowed: Tensor, deepest: int) -> Tree:
    """The tree of `draft` under the tokens `root` `[R]`.

    Parameters
    ----------
    root : Tensor
        int64 `[R]`, last committed tokens.
    draft : TreeDraft
    allowed : Tensor
        int64 `[R]`, the most drafts that a row may commit.
    deepest : int
        No node below this depth is valid.
    """
    rows, nodes = draft.tokens.shape
    tokens = torch.cat([root[:, None], draft.tokens], 1)
    index = torch.arange(nodes + 1, device=root.device).expand(rows, -1)
    drafted = torch.ones_like(index, dtype=torch.bool)
    if draft.counts is not None:
        drafted = index <= draft.counts[:, None]
    parents = torch.cat([torch.zeros_like(root)[:, None], draft.parents + 1], 1)
    parents = torch.where(drafted, parents, 0)
    mask = torch.eye(nodes + 1, dtype=torch.bool, device=root.device).repeat(rows, 1, 1)
    at = index
    for _ in range(deepest):
        at = parents.gather(1, at)
        mask.scatter_(2, at[..., None], torch.ones_like(mask[..., :1]))
    depth = mask.sum(-1) - 1
    # a walk that has not reached the root began too deep
    valid = drafted & (at == 0) & (depth <= allowed[:, None])
    return Tree(tokens, parents, depth, mask, valid)


def make_tree(batch: Batch, draft: TreeDraft, gamma: int, max_len: int) -> TreeChunk:
    """The chunk of `draft`, whose nodes count down to depth `gamma`, below position `max_len`."""
    allowed = batch.allowed(gamma)
    tree = build_tree(batch.tokens, draft, allowed, gamma)
    width = tree.tokens.shape[1]
    entries = batch.lengths[:, None] + torch.arange(width, device=allowed.device)
    return TreeChunk(
        **vars(tree),
        # masked rows may point past the tables; what they compute is never read
        positions=(batch.lengths[:, None] + tree.depth).clamp(0, max_len - 1),
        slots=batch.slots(entries, batch.active[:, None].expand(-1, width)),
        kv_lens=(batch.lengths + width) * batch.active,
        q_lens=width * batch.active.long(),
        allowed=allowed,
        drafted=(tree.depth * tree.valid).amax(1),
    )


def finish_tree_greedy(
    cache: KVCache, batch: Batch, chunk: TreeChunk, best: Tensor, bad: Tensor, gamma: int
) -> Tensor:
    """Accept, compact and commit at temperature 0; the iteration's result as `pack` has it.

    Parameters
    ----------
    cache : KVCache
    batch : Batch
    chunk : TreeChunk
    best, bad : Tensor
        int64 and bool `[R, N + 1]`: the arg-max after each token, and where there is none.
    gamma : int
        Of `make_tree`.

    Returns
    -------
    Tensor
        int64 `[R, 5 + gamma + 1]`.
    """
    walked = accept_tree_greedy(best, chunk.tokens, chunk.parents, chunk.valid, gamma)
    return finish_tree(cache, batch, chunk, *walked, bad)


def finish_tree_sampled(
    cache: KVCache,
    batch: Batch,
    chunk: TreeChunk,
    logits: Tensor,
    sampling: Sampling,
    gamma: int,
    drawn: Drawn,
) -> Tensor:
    """The same above temperature 0, of the logits `[R, N + 1, V]`; `drawn` as for `accept_tree`."""
    tree = chunk.tokens, chunk.parents, chunk.valid
    keys = batch.request, batch.lengths
    walked = accept_tree(logits, *tree, gamma, sampling, *keys, drawn)
    return finish_tree(cache, batch, chunk, *walked, invalid(logits))


def finish_tree(
    cache: KVCache,
    batch: Batch,
    chunk: TreeChunk,
    accepted: Tensor,
    following: Tensor,
    path: Tensor,
    bad: Tensor,
) -> Tensor:
    """Move and commit what `accept_tree` accepted; `bad` `[R, N + 1]` counts in valid columns."""
    wrong = (bad & chunk.valid & batch.active[:, None]).any(1)
    accepted = accepted * batch.active
    compact(cache, batch, path, accepted)
    batch.deepest.copy_(path[:, -1])
    committed = batch.commit(chunk.tokens.gather(1, path), accepted, following)
    return pack(committed, chunk.drafted, wrong)


def compact(cache: KVCache, batch: Batch, path: Tensor, accepted: Tensor) -> None:
    """Move the KV of accepted nodes to the positions after the root's, in every layer.

    Parameters
    ----------
    cache : KVCache
    batch : Batch
        Before `commit`: ``lengths`` is the root's position.
    path : Tensor
        int64 `[R, depth]`, the nodes by their column in the verification.
    accepted : Tensor
        int64 `[R]`, how many of them.
    """
    step = torch.arange(path.shape[1], device=path.device)
    stands = step < accepted[:, None]
    base = batch.lengths[:, None]
    source = batch.slots(base + path, stands).clamp(min=0)
    target = batch.slots(base + 1 + step, stands).clamp(min=0)
    for part in (cache.keys, cache.values):
        size = part.shape[2]
        # indexing copies, so that all is read before any is overwritten
        moved = part[:, source // size, source % size]
        part[:, target // size, target % size] = moved
