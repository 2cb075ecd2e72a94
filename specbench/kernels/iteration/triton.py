"""The bookkeeping of an iteration, a launch before drafts and verification and one behind."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.chunk import Chunk
from specbench.engine.draft_steps import DraftSteps
from specbench.engine.kv_cache import PAGE_SIZE
from specbench.kernels.iteration.device import allowed_drafts, commit
from specbench.kernels.launch import dependent, release_next, wait_for_previous
from specbench.methods.base import Draft


def make_chunk(batch: Batch, draft: Draft | None, gamma: int, max_len: int) -> Chunk:
    """As `engine.chunk.make_chunk`."""
    drafts = None if draft is None else draft.tokens
    counts = None if draft is None else draft.counts
    width = 1 if drafts is None else 1 + drafts.shape[1]
    shape = batch.rows, width
    tokens, positions, slots = (_integers(batch, *shape) for _ in range(3))
    kv_lens, q_lens, allowed = (_integers(batch, batch.rows) for _ in range(3))
    _make_chunk[(batch.rows,)](
        batch.tokens,
        batch.lengths,
        batch.remaining,
        batch.active,
        batch.block_table,
        batch.block_table.stride(0),
        drafts,
        (0, 0) if drafts is None else drafts.stride(),
        counts,
        tokens,
        positions,
        slots,
        kv_lens,
        q_lens,
        allowed,
        gamma,
        max_len,
        batch.block_table.shape[1],
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        PAGE=PAGE_SIZE,
        num_warps=1,
        **dependent(True, batch.tokens.device),
    )
    return Chunk(tokens, positions, slots, kv_lens, q_lens, allowed)


def draft_steps(batch: Batch, gamma: int, reach: Tensor, max_len: int) -> DraftSteps:
    """As `engine.draft_steps.draft_steps`; `reach` dense in its last axis."""
    if reach.shape[1] > 1 and reach.stride(1) != 1:
        raise ValueError("the positions of a row must be adjacent")
    width = reach.shape[1]
    fed, own = (_integers(batch, gamma, batch.rows, 1) for _ in range(2))
    tails = _integers(batch, gamma, batch.rows, width)
    _draft_steps[(batch.rows, gamma)](
        batch.lengths,
        batch.remaining,
        batch.active,
        batch.block_table,
        batch.block_table.stride(0),
        reach,
        reach.stride(0),
        fed,
        own,
        tails,
        width,
        gamma,
        max_len,
        batch.block_table.shape[1],
        BLOCK=min(1024, triton.next_power_of_2(width)),
        PAGE=PAGE_SIZE,
        num_warps=1,
        **dependent(True, batch.tokens.device),
    )
    return DraftSteps(fed, own, tails)


def finish_greedy(batch: Batch, chunk: Chunk, best: Tensor, bad: Tensor) -> Tensor:
    """As `engine.chunk.finish_greedy`."""
    width = chunk.tokens.shape[1]
    result = _integers(batch, batch.rows, 5 + width)
    _finish_greedy[(batch.rows,)](
        batch.tokens,
        batch.lengths,
        batch.remaining,
        batch.active,
        batch.deepest,
        batch.history,
        batch.history.stride(0),
        batch.eos,
        chunk.tokens,
        chunk.q_lens,
        chunk.allowed,
        best,
        best.stride(),
        bad,
        bad.stride(),
        result,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        EOS=len(batch.eos),
        num_warps=1,
        **dependent(True, batch.tokens.device),
    )
    return result


def _integers(batch: Batch, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=batch.tokens.device)


@triton.jit
def _make_chunk(
    last,
    lengths,
    remaining,
    active,
    table,
    table_stride,
    drafts,
    drafts_stride,
    counts,
    tokens,
    positions,
    slots,
    kv_lens,
    q_lens,
    allowed,
    gamma,
    max_len,
    pages,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < WIDTH
    running = tl.load(active + row).to(tl.int64)
    length = tl.load(lengths + row)
    drafted = allowed_drafts(remaining, active, row, gamma)
    if counts is not None:
        drafted = tl.minimum(drafted, tl.load(counts + row))
    rows = (drafted + 1) * running
    token = tl.load(last + row)
    if drafts is not None:
        at = drafts + row * drafts_stride[0] + (column - 1) * drafts_stride[1]
        token = tl.where(column == 0, token, tl.load(at, mask=there & (column > 0), other=0))
    else:
        token = tl.where(column == 0, token, token)
    position = length + column
    page = tl.minimum(tl.maximum(position // PAGE, 0), pages - 1)
    slot = tl.load(table + row * table_stride + page, mask=there, other=0) * PAGE + position % PAGE
    at = row * WIDTH + column
    tl.store(tokens + at, token, mask=there)
    tl.store(positions + at, tl.minimum(tl.maximum(position, 0), max_len - 1), mask=there)
    tl.store(slots + at, tl.where(column < rows, slot, -1), mask=there)
    tl.store(kv_lens + row, (length + rows) * running)
    tl.store(q_lens + row, rows)
    tl.store(allowed + row, drafted)


@triton.jit(do_not_specialize=["width", "gamma", "max_len", "pages"])
def _draft_steps(
    lengths,
    remaining,
    active,
    table,
    table_stride,
    reach,
    reach_stride,
    fed,
    own,
    tails,
    width,
    gamma,
    max_len,
    pages,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    PDL: tl.constexpr,
):
    row, step = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = step * tl.num_programs(0) + row
    release_next(PDL)
    wait_for_previous(PDL)
    drafting = step < allowed_drafts(remaining, active, row, gamma)
    position = tl.load(lengths + row) + step
    table += row * table_stride
    tl.store(fed + at, tl.minimum(tl.maximum(position, 0), max_len - 1))
    own_page = tl.minimum(tl.maximum(position // PAGE, 0), pages - 1)
    own_slot = tl.load(table + own_page) * PAGE + position % PAGE
    tl.store(own + at, tl.where(drafting, own_slot, -1))
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        there = column < width
        place = tl.load(reach + row * reach_stride + column, mask=there, other=0)
        page = tl.minimum(tl.maximum(place // PAGE, 0), pages - 1)
        slot = tl.load(table + page, mask=there, other=0) * PAGE + place % PAGE
        read = drafting & (place <= position)
        tl.store(tails + at * width + column, tl.where(read, slot, -1), mask=there)


@triton.jit
def _finish_greedy(
    last,
    lengths,
    remaining,
    active,
    deepest,
    history,
    history_stride,
    eos,
    tokens,
    q_lens,
    allowed,
    best,
    best_stride,
    bad,
    bad_stride,
    result,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    EOS: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < WIDTH
    drafted = tl.load(allowed + row)
    chosen = tl.load(best + row * best_stride[0] + column * best_stride[1], mask=there, other=0)
    ahead = column + 1 < WIDTH
    draft = tl.load(tokens + row * WIDTH + column + 1, mask=ahead, other=-1)
    stands = ahead & (column < drafted) & (draft == chosen)
    accepted = tl.min(tl.where(stands, PADDED, column), 0).to(tl.int64)
    following = tl.sum(tl.where(column == accepted, chosen, 0), 0)
    token = tl.where(column < accepted, draft, following)
    commit(
        last,
        lengths,
        remaining,
        active,
        history,
        history_stride,
        eos,
        result,
        row,
        column,
        token,
        accepted,
        WIDTH,
        EOS,
    )
    tl.store(deepest + row, accepted)
    wrong = tl.load(bad + row * bad_stride[0] + column * bad_stride[1], mask=there, other=0) != 0
    spoilt = tl.max((wrong & (column < tl.load(q_lens + row))).to(tl.int64), 0)
    out = result + row * (5 + WIDTH)
    tl.store(out + 2, drafted)
    tl.store(out + 4, spoilt)
