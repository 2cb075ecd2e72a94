"""One iteration, of chains and of trees: draft, verify, accept, commit and observe."""

from typing import TYPE_CHECKING

from torch import Tensor

from specbench.engine.chunk import Chunk
from specbench.engine.forward import FullAttention, TreeAttention
from specbench.methods.base import Draft, TreeDraft

if TYPE_CHECKING:
    from specbench.engine.engine import Engine


def iterate(engine: "Engine") -> Tensor:
    """Draft, verify, accept, commit and observe; int64 `[R, 5 + tokens]` for `collect`."""
    batch, method = engine.batch, engine.method
    with engine.phases("draft"):
        draft = method.draft(batch)
    if isinstance(draft, TreeDraft):
        return iterate_tree(engine, draft)
    collector = method.collector(batch)
    with engine.phases("verify"):
        chunk = engine.compute.make_chunk(batch, draft, method.gamma, engine.max_len)
        attention = FullAttention(
            engine.cache,
            batch.block_table,
            chunk.slots,
            chunk.kv_lens,
            chunk.q_lens,
            engine.scale,
            None if engine.frozen else collector,
            engine.phases,
            tap=None if engine.frozen else method.tap(batch),
        )
        result = _verify(engine, chunk, draft, attention)
    if not engine.frozen:
        with engine.phases("selection"):
            method.observe(batch)
    return result


def _verify(
    engine: "Engine", chunk: Chunk, draft: Draft | None, attention: FullAttention
) -> Tensor:
    """Judge the drafts and commit; the packed result."""
    batch, compute = engine.batch, engine.compute
    if engine.sampling.greedy:
        best, bad = compute.best(chunk.tokens, chunk.positions, attention)
        with engine.phases("sampling"):
            return compute.finish_greedy(batch, chunk, best, bad)
    logits = compute.logits(compute.hidden(chunk.tokens, chunk.positions, attention))
    with engine.phases("sampling"):
        return compute.finish_sampled(batch, chunk, draft, logits, engine.sampling)


def iterate_tree(engine: "Engine", draft: TreeDraft) -> Tensor:
    """What follows the drafts of an iteration, where they are trees; the packed result."""
    batch, method, compute = engine.batch, engine.method, engine.compute
    gamma, greedy = method.gamma, engine.sampling.greedy
    with engine.phases("verify"):
        chunk = compute.make_tree(batch, draft, gamma, engine.max_len)
        attention = TreeAttention(
            engine.cache,
            batch.block_table,
            chunk.slots,
            chunk.kv_lens,
            chunk.q_lens,
            chunk.mask,
            engine.scale,
            engine.phases,
            None if engine.frozen else method.tap(batch),
        )
        if greedy:
            best, bad = compute.best(chunk.tokens, chunk.positions, attention)
        else:
            hidden = compute.hidden(chunk.tokens, chunk.positions, attention)
            logits = compute.logits(hidden)
    with engine.phases("sampling"):
        if greedy:
            result = compute.finish_tree_greedy(batch, chunk, best, bad, gamma)
        else:
            result = compute.finish_tree_sampled(batch, chunk, logits, engine.sampling, gamma)
    if not engine.frozen:
        with engine.phases("selection"):
            method.observe(batch)
    return result
