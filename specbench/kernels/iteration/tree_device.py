"""The kernels of a tree's bookkeeping: its chunk, the walk down it, and the KV of the way."""

import triton
import triton.language as tl

from specbench.kernels.iteration.device import allowed_drafts, commit
from specbench.kernels.launch import release_next, wait_for_previous


@triton.jit
def build_tree(
    last,
    lengths,
    remaining,
    active,
    table,
    table_stride,
    drafts,
    drafts_stride,
    above,
    above_stride,
    counts,
    tokens,
    parents,
    depths,
    mask,
    valid,
    positions,
    slots,
    kv_lens,
    q_lens,
    allowed,
    drafted,
    max_len,
    pages,
    GAMMA: tl.constexpr,
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
    node = there & (column > 0)
    running = tl.load(active + row).to(tl.int64)
    length = tl.load(lengths + row)
    most = allowed_drafts(remaining, active, row, GAMMA)
    counted = there
    if counts is not None:
        counted = there & (column <= tl.load(counts + row))
    token = tl.load(
        drafts + row * drafts_stride[0] + (column - 1) * drafts_stride[1], mask=node, other=0
    )
    token = tl.where(column == 0, tl.load(last + row), token)
    above += row * above_stride[0]
    # a root's parent is itself, and what is no draft hangs below it
    parent = tl.load(above + (column - 1) * above_stride[1], mask=node & counted, other=-1) + 1
    at = parent
    depth = (column > 0).to(tl.int64)
    low, high = _bit(column, 0) | _bit(at, 0), _bit(column, 64) | _bit(at, 64)
    for _ in range(GAMMA - 1):
        depth += (at > 0).to(tl.int64)
        at = tl.load(above + (at - 1) * above_stride[1], mask=at > 0, other=-1) + 1
        low, high = low | _bit(at, 0), high | _bit(at, 64)
    # a walk that has not reached the root began too deep
    stands = counted & (at == 0) & (depth <= most)
    position = length + depth
    entry = length + column
    page = tl.minimum(tl.maximum(entry // PAGE, 0), pages - 1)
    slot = tl.load(table + row * table_stride + page, mask=there, other=0) * PAGE + entry % PAGE
    cell = row * WIDTH + column
    tl.store(tokens + cell, token, mask=there)
    tl.store(parents + cell, parent, mask=there)
    tl.store(depths + cell, depth, mask=there)
    tl.store(valid + cell, stands, mask=there)
    tl.store(positions + cell, tl.minimum(tl.maximum(position, 0), max_len - 1), mask=there)
    tl.store(slots + cell, tl.where(running != 0, slot, -1), mask=there)
    tl.store(kv_lens + row, (length + WIDTH) * running)
    tl.store(q_lens + row, WIDTH * running)
    tl.store(allowed + row, most)
    tl.store(drafted + row, tl.max(tl.where(stands, depth, 0), 0))
    # in parts, so that few elements are held at once
    PART: tl.constexpr = min(PADDED, 32)
    for first in tl.static_range(0, WIDTH, PART):
        bit = tl.arange(0, PART)
        word = ((low if first < 64 else high) >> (first % 64)).to(tl.int32)
        seen = (word[:, None] >> bit[None, :]) & 1
        inside = there[:, None] & (first + bit < WIDTH)[None, :]
        tl.store(mask + cell[:, None] * WIDTH + first + bit[None, :], seen, mask=inside)


@triton.jit
def _bit(number, first: tl.constexpr):
    """The bit of `number` in a word of those from `first` on; none where it is in another."""
    shifted = (number * 0 + 1).to(tl.int64) << (number % 64).to(tl.int64)
    return tl.where((number >= first) & (number < first + 64), shifted, 0)


@triton.jit
def walk_tree(
    last,
    lengths,
    remaining,
    active,
    deepest,
    history,
    history_stride,
    eos,
    tokens,
    parents,
    valid,
    drafted,
    best,
    best_stride,
    bad,
    bad_stride,
    result,
    path,
    accepted,
    root,
    GAMMA: tl.constexpr,
    LONGEST: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    STEPS: tl.constexpr,
    EOS: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < WIDTH
    cell = row * WIDTH + column
    best += row * best_stride[0]
    stands = tl.load(valid + cell, mask=there, other=0) != 0
    parent = tl.load(parents + cell, mask=there, other=0)
    # of every node at once, so that a step of the walk is one minimum
    chosen = tl.load(best + parent * best_stride[1], mask=there, other=-1)
    token = tl.load(tokens + cell, mask=there, other=0)
    follows = stands & (column > 0) & (token == chosen)
    parent = parent.to(tl.int32)
    place = tl.arange(0, STEPS)
    way = place * 0
    node = tl.full([], 0, tl.int32)
    count = tl.full([], 0, tl.int32)
    for step in range(LONGEST):
        child = tl.min(tl.where(follows & (parent == node), column, PADDED), 0)
        found = child < PADDED
        # where the walk has ended there is none again
        node = tl.where(found, child, node)
        count += found.to(tl.int32)
        way = tl.where(place == step, node, way)
    running = tl.load(active + row) != 0
    wrong = tl.load(bad + row * bad_stride[0] + column * bad_stride[1], mask=there, other=0) != 0
    spoilt = tl.max((wrong & stands).to(tl.int64), 0) * running.to(tl.int64)
    tl.store(path + row * LONGEST + place, way, mask=place < LONGEST)
    tl.store(accepted + row, count)
    tl.store(root + row, tl.load(lengths + row))
    tl.store(deepest + row, node)
    out = result + row * (6 + GAMMA)
    tl.store(out + 2, tl.load(drafted + row))
    tl.store(out + 4, spoilt)
    following = tl.load(best + node * best_stride[1])
    passed = tl.load(tokens + row * WIDTH + way, mask=place < count, other=0)
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
        place,
        tl.where(place < count, passed, following),
        count,
        GAMMA + 1,
        EOS,
    )


@triton.jit
def move_path(
    path,
    accepted,
    root,
    table,
    table_stride,
    keys,
    keys_stride,
    values,
    values_stride,
    LONGEST: tl.constexpr,
    STEPS: tl.constexpr,
    ENTRY: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Some elements of all accepted entries of a row in one layer."""
    release_next(PDL)
    wait_for_previous(PDL)
    row, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    count = tl.load(accepted + row)
    if count > 0:
        step = tl.arange(0, STEPS)
        node = tl.load(path + row * LONGEST + step, mask=step < count, other=0)
        # a node comes after its parent, so that none stands before its place in the chain: the
        # first ones may be there already
        moved = node > step + 1
        first = tl.load(root + row)
        source, target = first + node, first + 1 + step
        pages = table + row * table_stride
        source_page = tl.load(pages + source // PAGE, mask=moved, other=0).to(tl.int64)
        target_page = tl.load(pages + target // PAGE, mask=moved, other=0).to(tl.int64)
        element = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        head, dim = element // DIM, element % DIM
        inside = moved[:, None] & (element < ENTRY)[None, :]
        key = keys + layer * keys_stride[0] + head * keys_stride[3] + dim * keys_stride[4]
        value = values + layer * values_stride[0] + head * values_stride[3] + dim * values_stride[4]
        key_from = source_page * keys_stride[1] + source % PAGE * keys_stride[2]
        value_from = source_page * values_stride[1] + source % PAGE * values_stride[2]
        key_to = target_page * keys_stride[1] + target % PAGE * keys_stride[2]
        value_to = target_page * values_stride[1] + target % PAGE * values_stride[2]
        k = tl.load(key[None, :] + key_from[:, None], mask=inside)
        v = tl.load(value[None, :] + value_from[:, None], mask=inside)
        # a later step may go where an earlier one comes from, never the other way round (the path
        # ascends), and other threads have it: all is read before anything is written. Other
        # programs have other elements
        tl.debug_barrier()
        tl.store(key[None, :] + key_to[:, None], k, mask=inside)
        tl.store(value[None, :] + value_to[:, None], v, mask=inside)
