"""The attention of a layer as a phase: one list of entries and a tail, shared by programs."""

import triton
import triton.language as tl

from specbench.kernels.launch import last_to_arrive, prefetch
from specbench.kernels.sparse_attention.device import (
    attend,
    finished,
    list_slots,
    merge_splits,
    selected_slots,
    slot_place,
    write_group,
)
from specbench.kernels.step.barrier import turns


@triton.jit
def own_share(unit, width, splits, KV_HEADS: tl.constexpr):
    """Head, split and request of a unit, and its entries of the list, from first to last."""
    head, split = unit % KV_HEADS, unit // KV_HEADS % splits
    request = (unit // KV_HEADS // splits).to(tl.int64)
    return head, split, request, split * width // splits, (split + 1) * width // splits


@triton.jit
def first_slots(
    unit, units, selected, list_stride, width, splits, M: tl.constexpr, TILE: tl.constexpr
):
    """Slots of a unit's first entries, -1 for none: they were written before the launch."""
    head, _, request, first, last = own_share(unit, width, splits, M.kv_heads)
    last = tl.where(unit < units, last, first)
    own = selected + request * list_stride[0] + head * list_stride[1]
    entry = first + tl.arange(0, TILE)
    return selected_slots(own, entry, entry < last, 1)


@triton.jit
def _place(slot, head, kv_stride, PAGE: tl.constexpr, FLAT: tl.constexpr):
    place = slot_place(slot.to(tl.int64), kv_stride[0], kv_stride[1], PAGE, FLAT)
    return place + head.to(tl.int64) * kv_stride[2]


@triton.jit
def fetch_first(
    unit,
    slot,
    k_cache,
    v_cache,
    kv_stride,
    M: tl.constexpr,
    PAGE: tl.constexpr,
    FLAT: tl.constexpr,
    BESIDE: tl.constexpr,
):
    """Fetch the keys and values of slots into L2, at once where they stand side by side."""
    SIZE: tl.constexpr = M.dim * (k_cache.dtype.element_ty.primitive_bitwidth // 8)
    # in place of none, page 0, which belongs to nobody
    place = _place(tl.maximum(slot, 0), unit % M.kv_heads, kv_stride, PAGE, FLAT)
    if BESIDE:
        prefetch(k_cache + place, tl.full([slot.shape[0]], 2 * SIZE, tl.int32))
    else:
        prefetch(k_cache + place, tl.full([slot.shape[0]], SIZE, tl.int32))
        prefetch(v_cache + place, tl.full([slot.shape[0]], SIZE, tl.int32))


@triton.jit
def load_entries(
    slot,
    head,
    k_cache,
    v_cache,
    kv_stride,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Keys and values of slots, zeros where there are none."""
    dim = tl.arange(0, WIDTH)
    at = _place(slot, head, kv_stride, PAGE, FLAT)[:, None] + dim[None, :]
    readable = (slot >= 0)[:, None] & (dim < D)[None, :]
    keys = tl.load(k_cache + at, mask=readable, other=0.0)
    return keys, tl.load(v_cache + at, mask=readable, other=0.0)


@triton.jit
def _attend(query, keys, values, present, best, total, acc, scale):
    """As `attend`, but with one sum a row: a tile has many places, and a program has few tiles."""
    nothing = tl.zeros([query.shape[0], 1], tl.float32)
    higher, weights, acc = attend(query, keys, values, present, best, nothing, acc, scale)
    decay = tl.exp2(best - tl.where(higher == float("-inf"), 0.0, higher))
    return higher, total * decay + tl.sum(weights, 1), acc


@triton.jit
def attention(
    program,
    slot,
    held,
    q,
    k_cache,
    v_cache,
    kv_stride,
    selected,
    list_stride,
    tail,
    tail_stride,
    out,
    lse,
    lse_stride,
    partial,
    sums,
    arrivals,
    units,
    width,
    tail_width,
    splits,
    scale,
    M: tl.constexpr,
    A: tl.constexpr,
    PAGE: tl.constexpr,
    FLAT: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Attention of the queries; the last split of a list to finish merges them all."""
    D: tl.constexpr = M.dim
    TILE: tl.constexpr = A.tile
    WIDTH: tl.constexpr = A.dim_width
    GROUP: tl.constexpr = M.heads // M.kv_heads
    GROUP_WIDTH: tl.constexpr = A.group_width
    HEIGHT: tl.constexpr = A.height
    SPLIT_WIDTH: tl.constexpr = A.split_width
    MERGED: tl.constexpr = A.merged
    member, dim = tl.arange(0, HEIGHT), tl.arange(0, WIDTH)
    in_group = (member < GROUP)[:, None] & (dim < D)[None, :]
    for turn in tl.range(turns(program, units, PROGRAMS), num_stages=1, disable_licm=True):
        unit = program + turn * PROGRAMS
        head, split, request, first, last = own_share(unit, width, splits, M.kv_heads)
        own = selected + request * list_stride[0] + head * list_stride[1]
        query_row = request * M.heads + head * GROUP + member
        query = tl.load(q + query_row[:, None] * D + dim[None, :], mask=in_group, other=0.0)
        # the phase before wrote some of these; on their way while the others are worked on
        tail_last = tl.where(split == splits - 1, tail_width, 0)
        own_tail = tail + request * tail_stride
        tail_slot = list_slots(own, own_tail, tl.arange(0, A.tail), 0, tail_last, 1, False, 1)
        cache = head, k_cache, v_cache, kv_stride
        tail_keys, tail_values = load_entries(tail_slot, *cache, D, WIDTH, PAGE, FLAT)
        best = tl.full([HEIGHT], float("-inf"), tl.float32)
        total = tl.zeros([HEIGHT], tl.float32)
        acc = tl.zeros([HEIGHT, WIDTH], tl.float32)
        begin = first
        if A.held:
            begin = first + TILE
            state = best, total, acc, scale
            best, total, acc = _attend(query, held[0], held[1], slot >= 0, *state)
        # without this, filling the pipeline costs its time even where nothing is left
        if begin < last:
            for start in tl.range(begin, last, TILE, num_stages=A.stages):
                entry = start + tl.arange(0, TILE)
                listed = selected_slots(own, entry, entry < last, 1)
                keys, values = load_entries(listed, *cache, D, WIDTH, PAGE, FLAT)
                best, total, acc = _attend(
                    query, keys, values, listed >= 0, best, total, acc, scale
                )
        if split == splits - 1:
            state = best, total, acc, scale
            best, total, acc = _attend(query, tail_keys, tail_values, tail_slot >= 0, *state)
        group = request * M.kv_heads + head
        if SPLIT_WIDTH == 1:
            result, lse2 = finished(acc, total, best)
            place = result, lse2, request, head, member, dim, out
            write_group(*place, lse, lse_stride, M.kv_heads, GROUP, D)
        else:
            at = (group * splits + split) * GROUP + member
            tl.store(partial + at[:, None] * D + dim[None, :], acc, mask=in_group)
            tl.store(sums + 2 * at, best, mask=member < GROUP)
            tl.store(sums + 2 * at + 1, total, mask=member < GROUP)
            if last_to_arrive(arrivals + group, splits):
                result, lse2 = merge_splits(
                    *(partial, sums, group * splits, splits, GROUP, D),
                    *(WIDTH, GROUP_WIDTH, SPLIT_WIDTH, MERGED),
                )
                place = result, lse2, request, head, tl.arange(0, GROUP_WIDTH), dim, out
                write_group(*place, lse, lse_stride, M.kv_heads, GROUP, D)
