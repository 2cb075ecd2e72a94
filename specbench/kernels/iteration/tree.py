"""The bookkeeping of an iteration of trees: a launch before the verification, two behind it."""

import torch
import triton
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.random import Purpose
from specbench.engine.sampling import Sampling
from specbench.engine.tree import TreeChunk
from specbench.kernels.head.sample import sample
from specbench.kernels.head.uniform import uniform
from specbench.kernels.iteration.tree_device import build_tree, move_path, walk_tree
from specbench.kernels.launch import dependent
from specbench.methods.base import TreeDraft

# a node's ancestors are the bits of two words
MAX_COLUMNS = 128
# elements that a program moves at once, of keys and as many of values
_MOVED = 4096
# probabilities, 256 MiB of them, that one draw may hold
_DRAWN = 2**26


def make_tree(batch: Batch, draft: TreeDraft, gamma: int, max_len: int) -> TreeChunk:
    """As `engine.tree.make_tree`, for the root and up to 127 nodes, and a gamma of at least 1."""
    width = 1 + draft.tokens.shape[1]
    if width > MAX_COLUMNS:
        raise ValueError(f"a root and {width - 1} nodes are more than {MAX_COLUMNS} columns")
    rows, device = batch.rows, batch.tokens.device
    tokens, parents, depth, positions, slots = torch.empty(
        5, rows, width, dtype=torch.int64, device=device
    )
    kv_lens, q_lens, allowed, drafted = torch.empty(4, rows, dtype=torch.int64, device=device)
    mask = torch.empty(rows, width, width, dtype=torch.bool, device=device)
    valid = torch.empty(rows, width, dtype=torch.bool, device=device)
    padded = triton.next_power_of_2(width)
    build_tree[(rows,)](
        batch.tokens,
        batch.lengths,
        batch.remaining,
        batch.active,
        batch.block_table,
        batch.block_table.stride(0),
        draft.tokens,
        draft.tokens.stride(),
        draft.parents,
        draft.parents.stride(),
        draft.counts,
        tokens,
        parents,
        depth,
        mask.view(torch.uint8),
        valid,
        positions,
        slots,
        kv_lens,
        q_lens,
        allowed,
        drafted,
        max_len,
        batch.block_table.shape[1],
        GAMMA=gamma,
        WIDTH=width,
        PADDED=padded,
        PAGE=PAGE_SIZE,
        num_warps=max(1, padded // 32),
        **dependent(True, device),
    )
    return TreeChunk(
        tokens,
        parents,
        depth,
        mask,
        valid,
        positions=positions,
        slots=slots,
        kv_lens=kv_lens,
        q_lens=q_lens,
        allowed=allowed,
        drafted=drafted,
    )


def finish_tree_greedy(
    cache: KVCache, batch: Batch, chunk: TreeChunk, best: Tensor, bad: Tensor, gamma: int
) -> Tensor:
    """As `engine.tree.finish_tree_greedy`, of a chunk whose tensors are dense."""
    device = batch.tokens.device
    rows, width = chunk.tokens.shape
    # no way down is longer than there are nodes
    longest = max(1, min(gamma, width - 1))
    result = torch.empty(rows, 6 + gamma, dtype=torch.int64, device=device)
    path = torch.empty(rows, longest, dtype=torch.int64, device=device)
    accepted, root = torch.empty(2, rows, dtype=torch.int64, device=device)
    walk_tree[(rows,)](
        batch.tokens,
        batch.lengths,
        batch.remaining,
        batch.active,
        batch.deepest,
        batch.history,
        batch.history.stride(0),
        batch.eos,
        chunk.tokens,
        chunk.parents,
        chunk.valid,
        chunk.drafted,
        best,
        best.stride(),
        bad,
        bad.stride(),
        result,
        path,
        accepted,
        root,
        GAMMA=gamma,
        LONGEST=longest,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        STEPS=triton.next_power_of_2(gamma + 1),
        EOS=len(batch.eos),
        num_warps=1,
        **dependent(True, device),
    )
    layers, _, _, heads, dim = cache.keys.shape
    steps = triton.next_power_of_2(longest)
    block = min(triton.next_power_of_2(heads * dim), max(16, _MOVED // steps))
    move_path[(rows, layers, triton.cdiv(heads * dim, block))](
        path,
        accepted,
        root,
        batch.block_table,
        batch.block_table.stride(0),
        cache.keys,
        cache.keys.stride(),
        cache.values,
        cache.values.stride(),
        LONGEST=longest,
        STEPS=steps,
        ENTRY=heads * dim,
        DIM=dim,
        BLOCK=block,
        PAGE=PAGE_SIZE,
        num_warps=4,
        **dependent(True, device),
    )
    return result


def finish_tree_sampled(
    cache: KVCache, batch: Batch, chunk: TreeChunk, logits: Tensor, sampling: Sampling, gamma: int
) -> Tensor:
    """As `engine.tree.finish_tree_sampled`: tokens are drawn after all nodes, then it is greedy.

    The number of a draw is that of its position, whichever node stands there, so that the nodes of
    the way down have the tokens that a walk would draw one after the other.
    """
    rows, width, vocab = logits.shape
    start = batch.lengths[:, None] + chunk.depth
    u = uniform(sampling.seed, batch.request[:, None], start, 0, Purpose.TARGET).flatten()
    flat = logits.flatten(0, 1)
    best = torch.empty(rows * width, dtype=torch.int64, device=logits.device)
    bad = torch.empty(rows * width, dtype=torch.bool, device=logits.device)
    step = max(1, _DRAWN // vocab)
    for begin in range(0, rows * width, step):
        part = slice(begin, begin + step)
        best[part], _, bad[part] = sample(flat[part], sampling, u[part])
    tokens, wrong = best.view(rows, width), bad.view(rows, width)
    return finish_tree_greedy(cache, batch, chunk, tokens, wrong, gamma)
