"""Trees of drafts in the engine: their shape as masks, and one iteration that verifies them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.acceptance import accept_tree
from specbench.engine.batch import Batch, Committed
from specbench.engine.forward import TreeAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.sampling import invalid
from specbench.methods.base import TreeDraft

if TYPE_CHECKING:
    from specbench.engine.engine import Engine


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


def iterate_tree(engine: "Engine", draft: TreeDraft) -> tuple[Committed, Tensor, Tensor]:
    """Verify, accept, compact, commit: as for a chain, whose iteration is `iterate`.

    Returns
    -------
    committed : Committed
    drafted : Tensor
        int64 `[R]`, the depth of each row's tree.
    bad : Tensor
        bool `[R]`, rows whose logits could not be used.
    """
    batch, method = engine.batch, engine.method
    allowed = batch.allowed(method.gamma)
    tree = build_tree(batch.tokens, draft, allowed, method.gamma)
    width = tree.tokens.shape[1]
    slots = batch.lengths[:, None] + torch.arange(width, device=engine.device)
    active = batch.active[:, None].expand(-1, width)
    with engine.phases("verify"):
        attention = TreeAttention(
            engine.cache,
            batch.block_table,
            batch.slots(slots, active),
            (batch.lengths + width) * batch.active,
            width * batch.active.long(),
            tree.mask,
            engine.scale,
            engine.phases,
            None if engine.frozen else method.tap(batch),
        )
        positions = engine.within(batch.lengths[:, None] + tree.depth)
        logits = engine.compute.logits(engine.compute.hidden(tree.tokens, positions, attention))
    with engine.phases("sampling"):
        counted = tree.valid & active
        bad = (invalid(logits) & counted).any(1)
        drafted = (tree.depth * counted).amax(1)
        accepted, following, path = accept_tree(
            logits,
            tree.tokens,
            tree.parents,
            tree.valid,
            method.gamma,
            engine.sampling,
            batch.request,
            batch.lengths,
            engine.compute.sample,
        )
        accepted = accepted * batch.active
        compact(engine.cache, batch, path, accepted)
        batch.deepest.copy_(path[:, -1])
        committed = batch.commit(tree.tokens.gather(1, path), accepted, following)
    if not engine.frozen:
        with engine.phases("selection"):
            method.observe(batch)
    return committed, drafted, bad


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
