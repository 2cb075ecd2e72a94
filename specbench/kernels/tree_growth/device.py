"""What a program does that chooses the tokens of a row, or the level of a tree, without a sort.

Value and index of a candidate are one int64 key: its upper half is in the order of the values, its
lower half falls as the index rises. Keys are distinct, so that the greatest key is the best value,
and among equal ones the lowest index, whatever the order in which they are compared.
"""

import triton
import triton.language as tl

from specbench.kernels.launch import release_next, wait_for_previous

# less than any key
NOTHING = tl.constexpr(-(2**63))


@triton.jit
def keys(value, index):
    """Keys of float32 values and of indices below 2**31; NaN is above everything."""
    # two zeros are equal, their bits are not
    value = tl.where(value == 0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(value != value, 0x7FFFFFFF, order)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    """The value of a key; zero has lost its sign."""
    order = (key >> 32).to(tl.int32)
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    """The index of a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def greatest(key, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """The `COUNT` greatest of distinct keys `[n]`, descending: `[PADDED]`, `NOTHING` behind them.

    A maximum over registers each. Where there are fewer keys the rest is `NOTHING` too.
    """
    place = tl.arange(0, PADDED)
    found = tl.full((PADDED,), NOTHING, tl.int64)
    for rank in range(COUNT):
        best = tl.max(key, 0)
        found = tl.where(place == rank, best, found)
        key = tl.where(key == best, NOTHING, key)
    return found


@triton.jit
def choose_top(
    logits,
    stride,
    best,
    mass,
    scores,
    tokens,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_K: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row's best tokens, read from the groups that can hold them.

    Of the groups the k with the best maxima are read, of equal ones the lower. A group's tokens are
    neighbours, so that this is the order of the groups' best tokens, by logit and then by the lower
    id. The best tokens of the k groups come before every token of the others: none of those is
    among the k best of all, whatever ties.
    """
    row = tl.program_id(0).to(tl.int64)
    release_next(PDL)
    wait_for_previous(PDL)
    group = tl.arange(0, PADDED_GROUPS)
    there = group < GROUPS
    most = tl.load(best + row * GROUPS + group, mask=there, other=-float("inf"))
    weight = tl.load(mass + row * GROUPS + group, mask=there, other=0.0)
    peak = tl.max(most, 0)
    # a group without a finite logit weighs nothing
    total = tl.sum(tl.where(weight > 0, weight * tl.exp(most - peak), 0.0), 0)
    chosen = greatest(tl.where(there, keys(most, group), NOTHING), K, PADDED_K)
    read = chosen != NOTHING
    first = tl.where(read, index_of(chosen), 0) * GROUP
    index = first[:, None] + tl.arange(0, GROUP)[None, :]
    inside = read[:, None] & (index < V)
    value = tl.load(logits + row * stride + index, mask=inside, other=0.0).to(tl.float32)
    candidates = tl.where(inside, keys(value, index), NOTHING)
    # in any order: a key knows its token
    candidates = tl.reshape(candidates, (PADDED_K * GROUP,), can_reorder=True)
    found = greatest(candidates, K, PADDED_K)
    place = tl.arange(0, PADDED_K)
    at = row * K + place
    tl.store(scores + at, value_of(found) - peak - tl.log(total), mask=place < K)
    tl.store(tokens + at, index_of(found).to(tl.int64), mask=place < K)


@triton.jit(do_not_specialize=["begin"])
def choose_level(
    scores,
    scores_stride,
    tokens,
    tokens_stride,
    tree_tokens,
    tree_parents,
    tree_scores,
    tree_paths,
    begin,
    NODES: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_NODES: tl.constexpr,
    PADDED_K: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A request's next level: its best children, and whom each of them follows."""
    r = tl.program_id(0).to(tl.int64)
    release_next(PDL)
    wait_for_previous(PDL)
    scores += r * scores_stride[0]
    tokens += r * tokens_stride[0]
    tree = r * SIZE
    # -1, the root, where `begin` is 0
    above = begin - NODES
    node, rank = tl.arange(0, PADDED_NODES), tl.arange(0, PADDED_K)
    passed = (node < NODES) & (begin > 0)
    summed = tl.load(tree_scores + tree + above + node, mask=passed, other=0.0)
    node, rank = node[:, None], rank[None, :]
    there = (node < NODES) & (rank < K)
    at = node * scores_stride[1] + rank * scores_stride[2]
    total = tl.load(scores + at, mask=there, other=0.0) + summed[:, None]
    children = tl.where(there, keys(total, node * K + rank), NOTHING)
    children = tl.reshape(children, (PADDED_NODES * PADDED_K,), can_reorder=True)
    found = greatest(children, WIDTH, PADDED_WIDTH)
    place = tl.arange(0, PADDED_WIDTH)
    kept = place < WIDTH
    child = tl.where(kept, index_of(found), 0)
    at = child // K * tokens_stride[1] + child % K * tokens_stride[2]
    token = tl.load(tokens + at, mask=kept, other=0)
    parent = above + child // K
    at = tree + begin + place
    tl.store(tree_tokens + at, token, mask=kept)
    tl.store(tree_parents + at, parent.to(tl.int64), mask=kept)
    tl.store(tree_scores + at, value_of(found), mask=kept)
    # a node's path is its parent's and itself; there is nothing before the children of the root
    column = tl.arange(0, PADDED_SIZE)[None, :]
    paths = tree_paths + tree * SIZE + column
    known = kept[:, None] & (column < begin)
    path = tl.load(paths + parent[:, None] * SIZE, mask=known, other=0)
    own = begin + place[:, None]
    path = tl.where(column == own, 1, path)
    tl.store(paths + own * SIZE, path, mask=kept[:, None] & (column < SIZE))
