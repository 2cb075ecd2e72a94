"""What the kernels of an iteration's bookkeeping share on the device."""

import triton
import triton.language as tl


@triton.jit
def allowed_drafts(remaining, active, row, gamma):
    """How many drafts of `row` a verification takes, as `Batch.allowed`; 0 for an empty row."""
    running = tl.load(active + row).to(tl.int64)
    return tl.minimum(tl.maximum(tl.load(remaining + row) - 1, 0), gamma) * running


@triton.jit
def commit(
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
    WIDTH: tl.constexpr,
    EOS: tl.constexpr,
):
    """As `Batch.commit`, of the tokens of one row: `accepted` drafts and what follows them.

    Of the result, the columns of `Committed` are written: 0, 1, 3 and the tokens from 5 on. For one
    warp: threads of others could read a state that is new already.
    """
    there = column < WIDTH
    running = tl.load(active + row) != 0
    ends = column < 0
    for number in tl.static_range(EOS):
        ends = ends | (token == tl.load(eos + number))
    first = tl.min(tl.where(ends, column, WIDTH), 0)
    kept = there & running & (column <= accepted) & (column <= first)
    count = tl.sum(kept.to(tl.int64), 0)
    length = tl.load(lengths + row)
    tl.store(history + row * history_stride + length + 1 + column, token, mask=kept)
    left = tl.load(remaining + row) - count
    ended = running & ((first <= accepted) | (left == 0))
    newest = tl.sum(tl.where(column == count - 1, token, 0), 0)
    tl.store(last + row, newest, mask=count > 0)
    tl.store(lengths + row, length + count)
    tl.store(remaining + row, left)
    tl.store(active + row, running & (ended == 0))
    out = result + row * (5 + WIDTH)
    tl.store(out, count)
    tl.store(out + 1, tl.minimum(accepted, count))
    tl.store(out + 3, ended.to(tl.int64))
    tl.store(out + 5 + column, token, mask=there)
