"""Device functions that keep what top-k and top-p leave of a row's candidates, and draw of it."""

import triton
import triton.language as tl

from specbench.kernels.head.search import distances, kth_distance, lightest_weight, weigh


@triton.jit
def keep_few(
    near,
    ids,
    count,
    target,
    number,
    top_k,
    top_p,
    total,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    DRAW: tl.constexpr,
    V: tl.constexpr,
    FEW: tl.constexpr,
):
    """Of up to `FEW` listed candidates: each is kept by what lies ahead of it.

    Writes their probabilities to `target`, and returns the token that `number` in [0, 1) draws: the
    first whose cumulative weight exceeds it, and the last that has any.
    """
    at = tl.arange(0, FEW)
    inside = at < count
    index = tl.load(ids + at, mask=inside, other=V)
    d = tl.load(near + at, mask=inside, other=float("inf"))
    kept = inside
    if TOP_K:
        closer = (d[None, :] < d[:, None]) & inside[None, :]
        # ties with the k-th are kept
        kept = kept & (tl.sum(closer.to(tl.int32), 1) < top_k)
    weight = tl.where(kept, tl.exp(-d), 0.0)
    if TOP_K:
        total = tl.sum(weight.to(tl.float64), 0)
    if TOP_P:
        # heavier ones, and of equals the lower ids, which stand before
        ahead = (weight[None, :] > weight[:, None]) | (
            (weight[None, :] == weight[:, None]) & (at[None, :] < at[:, None])
        )
        before = tl.sum(tl.where(ahead, weight[None, :], 0.0).to(tl.float64), 1)
        # the best token stays, whatever its mass
        kept = kept & ((before < tl.cast(top_p, tl.float64) * total) | (before == 0))
        weight = tl.where(kept, weight, 0.0)
        total = tl.sum(weight.to(tl.float64), 0)
    tl.store(target + index, weight * (1 / total.to(tl.float32)), mask=kept)
    chosen, last = -1, 0
    if DRAW:
        chosen, last, _ = draw_within(weight, index, total * 0, number * total, chosen, last, V)
    return chosen, last


@triton.jit
def keep_many(
    source,
    peak,
    sharpness,
    near,
    ids,
    count,
    listed,
    target,
    number,
    top_k,
    top_p,
    total,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    DRAW: tl.constexpr,
    V: tl.constexpr,
    LIST: tl.constexpr,
):
    """The same of any number, by a search for where top-k and top-p end.

    Where the candidates are not `listed` with their ids, `near` holds their distances alone and the
    whole row is gone through.
    """
    farthest, lightest = tl.full((), float("inf"), tl.float32), tl.zeros((), tl.float32)
    kept_equal = 0
    if TOP_K:
        farthest = kth_distance(near, count, top_k, LIST)
        total, _ = weigh(near, count, farthest, -1.0, LIST)
    if TOP_P:
        needed = tl.cast(top_p, tl.float64) * total
        # what lies past the k-th is lighter than all within, and has no say
        lightest = lightest_weight(near, count, needed, LIST)
        heavier, equal = weigh(near, count, farthest, lightest, LIST)
        # a list that ends among equals takes the lower ids first
        each = tl.where(lightest > 0, lightest, 1.0).to(tl.float64)
        missing = tl.minimum(tl.maximum(tl.ceil((needed - heavier) / each), 1.0), equal)
        kept_equal = missing.to(tl.int32)
        total = heavier + kept_equal * lightest.to(tl.float64)
    # where the row itself is the list, all have read it before it is written
    tl.debug_barrier()
    scale = 1 / total.to(tl.float32)
    rest, passed = number * total, total * 0
    chosen, last, seen = -1, 0, 0
    end = count if listed else V
    first = 0
    while first < end:
        at = first + tl.arange(0, LIST)
        if listed:
            index = tl.load(ids + at, mask=at < count, other=V)
            d = tl.load(near + at, mask=at < count, other=float("inf"))
        else:
            index = at
            d = distances(source, first, peak, sharpness, V, LIST)
        weight = tl.exp(-d)
        kept = (at < end) & (d <= farthest)
        if TOP_P:
            tie = kept & (weight == lightest)
            kept = kept & (weight > lightest)
            kept = kept | (tie & (seen + tl.cumsum(tie.to(tl.int32), 0) <= kept_equal))
            seen += tl.sum(tie.to(tl.int32), 0)
        weight = tl.where(kept, weight, 0.0)
        tl.store(target + index, weight * scale, mask=index < V)
        if DRAW:
            chosen, last, passed = draw_within(weight, index, passed, rest, chosen, last, V)
        first += LIST
    return chosen, last


@triton.jit
def part_of_draw(mass, part, rest):
    """Of parts that weigh `mass`, float64, that in which the cumulative sum passes `rest`.

    The last that weighs anything, where rounding leaves none; and what lies before it.
    """
    NUMBER: tl.constexpr = mass.shape[0]
    found = tl.min(tl.where((tl.cumsum(mass, 0) > rest) & (mass > 0), part, NUMBER), 0)
    found = tl.where(found < NUMBER, found, tl.max(tl.where(mass > 0, part, 0), 0))
    return found, tl.sum(tl.where(part < found, mass, 0.0), 0)


@triton.jit
def draw_within(weight, index, passed, rest, chosen, last, V: tl.constexpr):
    """Go on with a draw: the token in which the cumulative weight exceeds `rest`, if none has yet.

    Also the last token of any weight so far, and the cumulative weight behind these.
    """
    here = tl.sum(weight, 0).to(tl.float64)
    if (chosen < 0) & (passed + here > rest):
        beyond = (passed + tl.cumsum(weight.to(tl.float64), 0) > rest) & (weight > 0)
        found = tl.min(tl.where(beyond, index, V), 0)
        # sums in two orders may disagree: then the next token is the one
        chosen = tl.where(found < V, found, -1)
    last = tl.maximum(last, tl.max(tl.where(weight > 0, index, 0), 0))
    return chosen, last, passed + here
