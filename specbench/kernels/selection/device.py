"""Triton functions of the selection: what runs on the device.

A tile is `[COLUMNS, DEPTH]` entries of one list of scores: column c holds the entries c,
c + COLUMNS, ... and belongs to one thread, so that sums and running sums along a column need no
other thread, and what one step reads is contiguous.
"""

import triton
import triton.language as tl

# the key of minus infinity
LEAST = tl.constexpr(-0x7F800001)
# NaN, at no index
_NAN_PAIR = tl.constexpr(0x7FC00000 << 32)


@triton.jit
def _key(value):
    """Integers in the order of the values."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _value(key):
    """The value of a key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _before(key):
    """The greatest value that is less than a key's; the two zeros are one."""
    return _value(tl.where(key == 0, key - 2, key - 1))


@triton.jit
def _reach(value, bound):
    """How many values of each column reach `bound`; NaN never does."""
    return tl.sum((value >= bound).to(tl.int32), 1)


@triton.jit
def _last_before(top, BITS: tl.constexpr):
    """The last key below `top` to try, where `BITS` low bits tell no values apart.

    It is past another key while there are values between the two to be told apart.
    """
    return ((top - 1) >> BITS) << BITS


@triton.jit
def _middle(low, at_low, top, at_top, need, step, BITS: tl.constexpr):
    """A key between `low` and `top`: where about `need` values should reach it, or half way.

    Of the two ends the one that is further off is to come near, so the guess aims past `need` by
    what neighbouring values scatter; each third step halves, whatever the values.
    """
    over = (at_low - need).to(tl.float32)
    under = (need - at_top).to(tl.float32)
    past = tl.where(
        over < under,
        tl.minimum(tl.sqrt(over), under * 0.5),
        -tl.minimum(tl.sqrt(under), over * 0.5),
    )
    share = (over + past) / (over + under)
    span = (top - low).to(tl.float32)
    guess = low + (span * tl.where(step % 3 == 2, 0.5, share)).to(tl.int64)
    first = ((low >> BITS) + 1) << BITS
    return tl.minimum(tl.maximum((guess >> BITS) << BITS, first), _last_before(top, BITS))


@triton.jit
def _force(value, index, entries, sinks, window):
    """Infinity in the place of the first and the last entries."""
    forced = ((index < sinks) | (index >= entries - window)) & (index < entries)
    return tl.where(forced, float("inf"), value)


@triton.jit
def threshold(
    line,
    entries,
    need,
    MARGIN: tl.constexpr,
    COLUMNS: tl.constexpr,
    SAMPLES: tl.constexpr,
    RUN: tl.constexpr,
    BITS: tl.constexpr,
):
    """The key of a score that in all likelihood `need` entries reach, and not many more."""
    column = tl.arange(0, COLUMNS)[:, None]
    draw = tl.arange(0, SAMPLES // COLUMNS)[None, :]
    # runs of neighbours, spread evenly
    run = (draw * (COLUMNS // RUN) + column // RUN).to(tl.int64)
    start = (run * entries // (SAMPLES // RUN)).to(tl.int32) // RUN * RUN
    value = tl.load(line + (start + column % RUN)).to(tl.float32)
    share = need.to(tl.float32) / entries.to(tl.float32)
    deviation = tl.sqrt(SAMPLES * share * (1.0 - share))
    rank = (SAMPLES * share + MARGIN * (deviation + 1.0)).to(tl.int32)
    # a little more does no harm, and ends the search sooner
    enough = rank + (0.5 * deviation).to(tl.int32)

    least = tl.min(tl.min(value, 1), 0)
    low = _key(least)
    at_low = tl.sum(_reach(value, least), 0)
    top = _key(tl.max(tl.max(value, 1), 0)) + 1
    at_top = 0
    step = 0
    # too few numbers in the sample: everything may be needed
    if at_low <= rank:
        low = low * 0 + LEAST
        at_low = rank
    while (_last_before(top, BITS) > low) & (at_low > enough):
        middle = _middle(low, at_low, top, at_top, rank, step, BITS)
        reached = tl.sum(_reach(value, _value(middle)), 0)
        if reached >= rank:
            low = middle
            at_low = reached
        else:
            top = middle
            at_top = reached
        step += 1
    return low


@triton.jit
def load_tile(line, start, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """A tile of scores, all of which exist: read once, and not in place of the candidates in L2."""
    column = tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)[None, :]
    # the constant part of an address comes last: it becomes part of the instruction
    place = (line + start + column)[:, None] + depth * COLUMNS
    return tl.load(place, eviction_policy="evict_first")


@triton.jit
def load_rest(line, start, entries, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """A tile of scores of which some exist; the others are NaN."""
    column = tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)[None, :]
    index = (start + column)[:, None] + depth * COLUMNS
    return tl.load(line + index, mask=index < entries, other=float("nan"))


@triton.jit
def collect(
    value,
    found,
    counts,
    start,
    entries,
    bound,
    capacity,
    sinks,
    window,
    FORCED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Append what reaches the key `bound` in one tile to its column's list, as value and index.

    Returns the lists' new lengths; a list that might overflow grows on without being written.
    """
    column = tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)[None, :]
    index = (start + column)[:, None] + depth * COLUMNS
    value = value.to(tl.float32)
    if FORCED:
        value = _force(value, index, entries, sinks, window)
    place = tl.cumsum(tl.where(value >= _value(bound), COLUMNS, 0), 1)
    # the same comparison in other words: its outcome need not be kept from the sum to the store
    below = tl.where(counts + DEPTH <= capacity, _before(bound), float("inf"))[:, None]
    bits = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    pair = (bits << 32) | index.to(tl.uint32).to(tl.uint64)
    goal = (found + (counts - 1) * COLUMNS + column)[:, None] + place
    tl.store(goal, pair.to(tl.int64), mask=value > below)
    return counts + tl.sum(tl.where(depth == DEPTH - 1, place, 0), 1) // COLUMNS


@triton.jit
def _read(
    source,
    counts,
    start,
    entries,
    sinks,
    window,
    LISTED: tl.constexpr,
    FORCED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Values and indices of a tile of the lists or of the scores; NaN where there is nothing."""
    column = tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)[None, :]
    if LISTED:
        place = (source + start * COLUMNS + column)[:, None] + depth * COLUMNS
        pair = tl.load(place, mask=start + depth < counts[:, None], other=_NAN_PAIR)
        value = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        return value, pair.to(tl.uint32)
    else:
        index = (start * COLUMNS + column)[:, None] + depth * COLUMNS
        value = load_rest(source, start * COLUMNS, entries, COLUMNS, DEPTH).to(tl.float32)
        if FORCED:
            value = _force(value, index, entries, sinks, window)
        return value, index.to(tl.uint32)


@triton.jit
def count_numbers(
    line, entries, sinks, window, FORCED: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """How many entries of each column are not NaN."""
    counts = tl.zeros([COLUMNS], tl.int32)
    for start in range(0, tl.cdiv(entries, COLUMNS), DEPTH):
        value = _read(line, counts, start, entries, sinks, window, False, FORCED, COLUMNS, DEPTH)[0]
        counts += _reach(value, float("-inf"))
    return counts


@triton.jit
def choose(
    source,
    counts,
    deepest,
    entries,
    low,
    reaching,
    need,
    sinks,
    window,
    pages,
    target,
    LISTED: tl.constexpr,
    FORCED: tl.constexpr,
    PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    KEPT: tl.constexpr,
    BITS: tl.constexpr,
):
    """Write the `need` best entries, of which `reaching` in each column reach the key `low`.

    Returns how many were written: fewer than `need` where there are not as many numbers.
    """
    kept = _read(source, counts, 0, entries, sinks, window, LISTED, FORCED, COLUMNS, KEPT)[0]
    most = tl.max(tl.max(kept, 1), 0)
    for start in range(KEPT, deepest, DEPTH):
        value = _read(
            source, counts, start, entries, sinks, window, LISTED, FORCED, COLUMNS, DEPTH
        )[0]
        most = tl.maximum(most, tl.max(tl.max(value, 1), 0))
    top = _key(most) + 1
    above = tl.zeros([COLUMNS], tl.int32)
    at_low = tl.sum(reaching, 0)
    at_top = 0
    step = 0
    # `low` is reached by enough, `top` by too few
    while (_last_before(top, BITS) > low) & (at_low > need):
        middle = _middle(low, at_low, top, at_top, need, step, BITS)
        bound = _value(middle)
        columns = _reach(kept, bound)
        for start in range(KEPT, deepest, DEPTH):
            value = _read(
                source, counts, start, entries, sinks, window, LISTED, FORCED, COLUMNS, DEPTH
            )[0]
            columns += _reach(value, bound)
        reached = tl.sum(columns, 0)
        if reached >= need:
            low = middle
            at_low = reached
            reaching = columns
        else:
            top = middle
            at_top = reached
            above = columns
        step += 1
    # all that reach `low`, or those above it and then its equals while there is room
    tied = at_low > need
    for turn in range(0, tl.where(tied, 2, 1)):
        first = tl.where(tied & (turn == 0), top, low)
        least = _value(first)
        before = _before(first)
        last = tl.where(turn == 0, float("inf"), _value(top - 1))
        each = tl.where(tied, tl.where(turn == 0, above, reaching - above), reaching)
        at = tl.where(turn == 0, 0, at_top) + tl.cumsum(each, 0) - each
        for start in range(0, deepest, DEPTH):
            value, index = _read(
                source, counts, start, entries, sinks, window, LISTED, FORCED, COLUMNS, DEPTH
            )
            taken = (value >= least) & (value <= last)
            place = tl.cumsum(taken.to(tl.int32), 1)
            if LISTED:
                # as in `collect`
                taken = (value > before) & ~(value > last)
            goal = at[:, None] + place - 1
            taken &= goal < need
            position = index
            if PAGE > 0:
                page = tl.load(pages + index // PAGE, mask=taken, other=0)
                position = page.to(target.dtype.element_ty) * PAGE + index % PAGE
            tl.store(target + goal, position.to(target.dtype.element_ty), mask=taken)
            at += tl.sum(tl.where(tl.arange(0, DEPTH)[None, :] == DEPTH - 1, place, 0), 1)
    return tl.minimum(at_low, need)


@triton.jit
def fill(target, start, width, COLUMNS: tl.constexpr):
    """-1 from place `start` on."""
    nothing = tl.full([COLUMNS], -1, target.dtype.element_ty)
    for first in range(start, width, COLUMNS):
        place = first + tl.arange(0, COLUMNS)
        tl.store(target + place, nothing, mask=place < width)
