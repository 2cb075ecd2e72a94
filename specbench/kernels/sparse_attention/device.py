"""Triton functions of the sparse attention: what its kernel calls on the device."""

import triton
import triton.language as tl

from specbench.kernels.launch import prefetch


@triton.jit
def list_slots(selected, tail, entry, listed, last, UNIT: tl.constexpr):
    """Slots of entries before `last` of the list that the tail continues, int64, -1 for none."""
    in_list = entry < tl.minimum(listed, last)
    in_tail = (entry >= listed) & (entry < last)
    if UNIT == 1:
        slot = tl.load(selected + entry, mask=in_list, other=-1).to(tl.int64)
    else:
        run = tl.load(selected + entry // UNIT, mask=in_list, other=-1).to(tl.int64)
        slot = tl.where(run >= 0, run * UNIT + entry % UNIT, -1)
    tail_slot = tl.load(tail + (entry - listed), mask=in_tail, other=-1).to(tl.int64)
    return tl.where(entry < listed, slot, tail_slot)


@triton.jit
def fetch_selected(
    k_cache,
    v_cache,
    selected,
    shift,
    first,
    last,
    kv_page,
    kv_token,
    PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Fetch keys and values of the selected entries from `first` to `last` into L2."""
    SIZE: tl.constexpr = k_cache.dtype.element_ty.primitive_bitwidth // 8
    size = tl.full([TILE], DIM * SIZE, tl.int32)
    for start in range(first, last, TILE):
        entry = start + tl.arange(0, TILE)
        run = tl.load(selected + entry // UNIT, mask=entry < last, other=-1).to(tl.int64)
        # in place of none, page 0, which belongs to nobody
        slot = tl.where(run >= 0, run * UNIT + entry % UNIT, 0)
        place = slot // PAGE * kv_page + slot % PAGE * kv_token + shift
        prefetch(k_cache + place, size)
        prefetch(v_cache + place, size)


@triton.jit
def merge_splits(
    partial,
    sums,
    first,
    working,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    SPLIT_WIDTH: tl.constexpr,
    MERGED: tl.constexpr,
):
    """Attention `[GROUP_WIDTH, DIM_WIDTH]` of the parts from split `first` on; log2-sum-exps."""
    member = tl.arange(0, GROUP_WIDTH)
    dim = tl.arange(0, DIM_WIDTH)
    split = tl.arange(0, SPLIT_WIDTH)
    # past the first-level cache: other programs wrote these
    place = (first + split[:, None]) * GROUP + member[None, :]
    there = (split < working)[:, None] & (member < GROUP)[None, :]
    best = tl.load(sums + 2 * place, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums + 2 * place + 1, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(best, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(total * tl.exp2(best - top[None, :]), 0)
    merged = tl.zeros([GROUP_WIDTH, DIM_WIDTH], tl.float32)
    for start in range(0, working, MERGED):
        some = start + tl.arange(0, MERGED)
        part_place = (first + some[:, None]) * GROUP + member[None, :]
        part_there = (some < working)[:, None] & (member < GROUP)[None, :]
        part_best = tl.load(
            sums + 2 * part_place, mask=part_there, other=float("-inf"), cache_modifier=".cg"
        )
        part = tl.load(
            partial + part_place[:, :, None] * DIM + dim[None, None, :],
            mask=part_there[:, :, None] & (dim < DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        merged += tl.sum(part * tl.exp2(part_best - top[None, :])[:, :, None], 0)
    return finished(merged, total, top)


@triton.jit
def finished(acc, total, top):
    """Attention and log2-sum-exps of sums under `top`; zeros and -inf where nothing was present."""
    some = tl.where(total == 0.0, 1.0, total)
    return acc / some[:, None], tl.where(total == 0.0, float("-inf"), top + tl.log2(some))
