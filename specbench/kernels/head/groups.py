"""Device functions over groups of neighbouring tokens: which of them can hold what is looked for.

A first pass leaves each group's best logit and its mass, the sum of weights relative to that logit.
From those alone follows a distance that holds all candidates, and which groups have any.
"""

import triton
import triton.language as tl


@triton.jit
def survey(
    source, sharpness, best, mass, V: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr
):
    """Best logit and mass of the groups of this program's chunk; infinite where there is a NaN."""
    PARTS: tl.constexpr = CHUNK // GROUP
    first = tl.program_id(1) * CHUNK
    index = first + tl.arange(0, PARTS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(source + index, mask=index < V, other=-float("inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)
    most = tl.max(value, 1)
    # of a group without a finite logit there is nothing to weigh
    known = (most > -float("inf")) & (most < float("inf"))
    away = tl.where(known[:, None], (most[:, None] - value) * sharpness, float("inf"))
    group = first // GROUP + tl.arange(0, PARTS)
    there = group * GROUP < V
    tl.store(best + group, most, mask=there)
    tl.store(mass + group, tl.sum(tl.exp(-away), 1), mask=there)


@triton.jit
def distance_of_count(away, k):
    """A distance within which `k` groups have their best token; infinite where too few have.

    `away` holds the groups' distances. So many tokens lie within it at least, and the k-th best is
    one of them. It is settled to 12 bits of its mantissa: a few groups more cost less than the end.
    """
    nearness = 0x7F800000 - away.to(tl.int32, bitcast=True)
    key = 0
    for step in range(5):
        shift = 27 - 4 * step
        pivots = key + (tl.arange(0, 16) << shift)
        counts = tl.sum((nearness[:, None] >= pivots[None, :]).to(tl.int32), 0)
        enough = tl.sum((counts >= k).to(tl.int32), 0)
        key += tl.maximum(enough - 1, 0) << shift
    return (0x7F800000 - key).to(tl.float32, bitcast=True)


@triton.jit
def distance_of_mass(away, weights, top_p, total, GROUP: tl.constexpr):
    """A distance within which `top_p` of the mass `total` lies; infinite where none is sure to be.

    `weights` are the groups' masses relative to the best token of all. What lies beyond a distance
    is at most the mass of the groups beyond it, and of the others so many tokens of its weight.
    """
    allowed = 0.999 * (1 - top_p) * total.to(tl.float32)
    found = tl.full((), float("inf"), tl.float32)
    for step in range(15, -1, -1):
        cut = 2 + 1.25 * tl.cast(step, tl.float32)
        most = tl.where(away <= cut, tl.minimum(weights, GROUP * tl.exp(-cut)), weights)
        found = tl.where(tl.sum(most, 0) <= allowed, cut, found)
    return found


@triton.jit
def visit(away, cut, there, visited):
    """Write the numbers of the groups within `cut` in their order; how many there are."""
    near = (there & (away <= cut)).to(tl.int32)
    place = tl.cumsum(near, 0) - near
    tl.store(visited + place, tl.arange(0, away.shape[0]), mask=near > 0)
    # read back by other threads than wrote it
    tl.debug_barrier()
    return tl.sum(near, 0)


@triton.jit
def gather_visited(
    source,
    peak,
    sharpness,
    cut,
    visited,
    visits,
    near,
    ids,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Write tokens up to `cut` of the visited groups, in the order of their ids; their number.

    Distances to `near` and ids to `ids`; those that `CAPACITY` does not hold are counted only.
    """
    count = 0
    first = 0
    while first < visits:
        at = first + tl.arange(0, PARTS)
        group = tl.load(visited + at, mask=at < visits, other=0)
        index = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = (at < visits)[:, None] & (index < V)
        value = tl.load(source + index, mask=inside, other=-float("inf")).to(tl.float32)
        d = (peak - value) * sharpness
        kept = inside & (d <= cut)
        each = tl.sum(kept.to(tl.int32), 1)
        before = count + tl.cumsum(each, 0) - each
        place = before[:, None] + tl.cumsum(kept.to(tl.int32), 1) - 1
        kept = kept & (place < CAPACITY)
        tl.store(near + place, d, mask=kept)
        tl.store(ids + place, index, mask=kept)
        count += tl.sum(each, 0)
        first += PARTS
    tl.debug_barrier()
    return count
