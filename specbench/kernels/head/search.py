"""Device functions that find where top-k and top-p end, without a sort.

A token's distance is (best logit - its own) times `sharpness`, which is 1 / temperature, and its
weight is exp(-distance). The bits of a non-negative float, read as an integer, are in the order of
the floats: thresholds are found four bits at a time, by what lies at or above each of sixteen
pivots.
"""

import triton
import triton.language as tl


@triton.jit
def distances(source, first, peak, sharpness, V: tl.constexpr, BLOCK: tl.constexpr):
    """Distances of the tokens from `first`, infinite past the vocabulary."""
    index = first + tl.arange(0, BLOCK)
    value = tl.load(source + index, mask=index < V, other=-float("inf")).to(tl.float32)
    return (peak - value) * sharpness


@triton.jit
def gather_near(source, near, peak, sharpness, cut, V: tl.constexpr, BLOCK: tl.constexpr):
    """Write the distances up to `cut` to `near` in the order of the ids; how many there are."""
    count = 0
    for first in tl.range(0, V, BLOCK):
        d = distances(source, first, peak, sharpness, V, BLOCK)
        kept = (d <= cut) & (first + tl.arange(0, BLOCK) < V)
        place = count + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(near + place, d, mask=kept)
        count += tl.sum(kept.to(tl.int32), 0)
    # read back by other threads than wrote it
    tl.debug_barrier()
    return count


@triton.jit
def kth_distance(near, count, k, LIST: tl.constexpr):
    """The distance of the k-th best token of the list."""
    nearness = _largest(near, count, tl.cast(k, tl.float64), True, LIST)
    return (0x7F800000 - nearness).to(tl.float32, bitcast=True)


@triton.jit
def lightest_weight(near, count, needed, LIST: tl.constexpr):
    """The largest weight such that all from it upwards weigh `needed`."""
    return _largest(near, count, needed, False, LIST).to(tl.float32, bitcast=True)


@triton.jit
def _largest(near, count, needed, COUNT: tl.constexpr, LIST: tl.constexpr):
    """The largest key such that tokens of at least this key amount to `needed`.

    With `COUNT` the keys are in the order of nearness and a token amounts to 1; else they are the
    bits of the weights, and a token amounts to its weight.
    """
    key = 0
    for step in range(8):
        # 31 bits: seven times four, and three that the last pivots go past
        shift = tl.maximum(27 - 4 * step, 0)
        pivots = key + (tl.arange(0, 16) << shift)
        amounts = tl.zeros((16,), tl.float64)
        first = 0
        while first < count:
            index = first + tl.arange(0, LIST)
            d = tl.load(near + index, mask=index < count, other=float("inf"))
            inside = index < count
            if COUNT:
                # 0 for an infinite distance
                keys = 0x7F800000 - d.to(tl.int32, bitcast=True)
                amount = tl.where(inside, 1.0, 0.0)
            else:
                amount = tl.where(inside, tl.exp(-d), 0.0)
                keys = amount.to(tl.int32, bitcast=True)
            above = keys[:, None] >= pivots[None, :]
            amounts += tl.sum(tl.where(above, amount[:, None], 0.0).to(tl.float64), 0)
            first += LIST
        enough = tl.sum((amounts >= needed).to(tl.int32), 0)
        key += tl.maximum(enough - 1, 0) << shift
    return key


@triton.jit
def weigh(near, count, farthest, lightest, LIST: tl.constexpr):
    """Mass above the weight `lightest`, up to `farthest`, and the number of tokens at it."""
    heavier = tl.zeros((LIST,), tl.float64)
    equal = tl.zeros((LIST,), tl.int32)
    first = 0
    while first < count:
        index = first + tl.arange(0, LIST)
        d = tl.load(near + index, mask=index < count, other=float("inf"))
        inside = (index < count) & (d <= farthest)
        weight = tl.where(inside, tl.exp(-d), 0.0)
        heavier += tl.where(weight > lightest, weight, 0.0)
        equal += (inside & (weight == lightest)).to(tl.int32)
        first += LIST
    return tl.sum(heavier, 0), tl.sum(equal, 0)
