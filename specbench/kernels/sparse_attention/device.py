"""Triton functions of the sparse attention: what its kernel calls on the device."""

import triton
import triton.language as tl

from specbench.kernels.launch import prefetch

# a place that no entry has
ABSENT = tl.constexpr(-(2**62))
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def selected_slots(selected, entry, inside, UNIT: tl.constexpr, FRESH: tl.constexpr = False):
    """Slots of the entries of a list that are `inside`, -1 for none."""
    run = _load_list(selected + entry // UNIT, inside, FRESH)
    if UNIT == 1:
        return run
    else:
        return tl.where(run >= 0, run.to(tl.int64) * UNIT + entry % UNIT, -1)


@triton.jit
def list_slots(
    selected,
    tail,
    entry,
    listed,
    last,
    UNIT: tl.constexpr,
    FRESH: tl.constexpr,
    COPIES: tl.constexpr,
):
    """Slots of entries before `last` of the list that the tail continues, int64, -1 for none.

    Where there are `COPIES` times as many threads as entries, one of an entry's threads reads the
    list and another the tail. Without that, the compiler has every thread read the slots of all its
    addresses, and puts that into the pipeline, which then holds fewer tiles of keys and values.
    """
    if COPIES == 1:
        slot = selected_slots(selected, entry, entry < tl.minimum(listed, last), UNIT, FRESH)
        in_tail = (entry >= listed) & (entry < last)
        tail_slot = _load_list(tail + (entry - listed), in_tail, FRESH)
        return tl.where(entry < listed, slot.to(tl.int64), tail_slot.to(tl.int64))
    else:
        copy = tl.arange(0, COPIES)[None, :]
        each = entry[:, None]
        in_list = (each < tl.minimum(listed, last)) & (copy == 0)
        in_tail = (each >= listed) & (each < last) & (copy == 1)
        slot = selected_slots(selected, each, in_list, UNIT, FRESH)
        tail_slot = _load_list(tail + (each - listed), in_tail, FRESH)
        return tl.max(tl.maximum(slot, tail_slot), 1).to(tl.int64)


@triton.jit
def _load_list(pointers, inside, FRESH: tl.constexpr):
    """Slots, past the first-level cache if `FRESH`: before the wait, what it holds may be old."""
    if FRESH:
        return tl.load(pointers, mask=inside, other=-1, cache_modifier=".cg")
    else:
        return tl.load(pointers, mask=inside, other=-1)


@triton.jit
def slot_place(slot, page_stride, token_stride, PAGE: tl.constexpr, FLAT: tl.constexpr):
    """By how many elements a slot is behind the first; if `FLAT`, whatever its page."""
    if FLAT:
        return slot * token_stride
    else:
        return slot // PAGE * page_stride + slot % PAGE * token_stride


@triton.jit
def entry_places(
    selected,
    tail,
    entry,
    listed,
    last,
    k_shift,
    v_shift,
    kv_page,
    kv_token,
    tail_kv_page,
    tail_kv_token,
    tail_head,
    PAGE: tl.constexpr,
    TAIL_PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    FLAT: tl.constexpr,
    FRESH: tl.constexpr,
    COPIES: tl.constexpr,
):
    """Which entries there are, and where their keys and values begin, in elements.

    The places of what is not there are `ABSENT`: threads that share out places need no more.
    """
    slot = list_slots(selected, tail, entry, listed, last, UNIT, FRESH, COPIES)
    place = slot_place(slot, kv_page, kv_token, PAGE, FLAT)
    k_place = place
    v_place = place
    if k_shift is not None:
        # the choice is an entry's, not an element's: addresses stay as cheap
        at = slot // TAIL_PAGE * tail_kv_page + slot % TAIL_PAGE * tail_kv_token + tail_head
        k_place = tl.where(entry < listed, place, at + k_shift)
        v_place = tl.where(entry < listed, place, at + v_shift)
    present = slot >= 0
    return present, tl.where(present, k_place, ABSENT), tl.where(present, v_place, ABSENT)


@triton.jit
def is_entry(place):
    """Whether a place is an entry's: its upper half tells, which is one comparison, not two."""
    return (place >> 32).to(tl.int32) > ABSENT >> 33


@triton.jit
def fetch_list(selected, first, last, UNIT: tl.constexpr):
    """Fetch the slots of entries from `first` to `last` into L2, in one instruction."""
    BYTES: tl.constexpr = selected.dtype.element_ty.primitive_bitwidth // 8
    if first < last:
        begin = tl.cast(selected + first // UNIT, tl.int64)
        begin -= begin % 16
        end = tl.cast(selected + (last - 1) // UNIT, tl.int64) + BYTES
        size = (end - begin + 15) // 16 * 16
        one = tl.arange(0, 1)
        prefetch(tl.cast(begin, selected.dtype) + one, size.to(tl.int32) + one)


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
    FLAT: tl.constexpr,
    DIM: tl.constexpr,
    PAIRED: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Fetch keys and values of `NUMBER` selected entries from `first` on, before `last`, into L2.

    A key and the value behind it, if `PAIRED`, in one go: threads of a warp take turns.
    """
    SIZE: tl.constexpr = k_cache.dtype.element_ty.primitive_bitwidth // 8
    BYTES: tl.constexpr = DIM * SIZE * 2 if PAIRED else DIM * SIZE
    if first < last:
        size = tl.full([NUMBER], BYTES, tl.int32)
        entry = first + tl.arange(0, NUMBER)
        slot = selected_slots(selected, entry, entry < last, UNIT, True).to(tl.int64)
        # in place of none, page 0, which belongs to nobody
        place = slot_place(tl.maximum(slot, 0), kv_page, kv_token, PAGE, FLAT) + shift
        prefetch(k_cache + place, size)
        if not PAIRED:
            prefetch(v_cache + place, size)


@triton.jit
def attend(query, keys, values, present, best, total, acc, scale):
    """Online softmax in base 2: what `best`, `total` and `acc` become with another tile.

    `total` has a sum for each place in a tile: only the greatest logit has to be agreed on by the
    threads that share a row.
    """
    logits = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    logits = tl.where(present[None, :], logits, float("-inf"))
    higher = tl.maximum(best, tl.max(logits, 1))
    # while nothing was present: -inf less -inf is NaN
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(logits - safe[:, None]).to(values.dtype)
    decay = tl.exp2(best - safe)
    # of the rounded weights, so that those sum to one
    total = total * decay[:, None] + weights.to(tl.float32)
    acc = tl.dot(weights, values, acc * decay[:, None], input_precision="ieee")
    return higher, total, acc


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
    """Attention `[GROUP_WIDTH, DIM_WIDTH]` of the parts from split `first` on; log2-sum-exps.

    `MERGED` parts at a time: a thread adds up its own elements of them, and no load waits for
    another.
    """
    member = tl.arange(0, GROUP_WIDTH)
    dim = tl.arange(0, DIM_WIDTH)
    total = tl.zeros([GROUP_WIDTH], tl.float32)
    merged = tl.zeros([GROUP_WIDTH, DIM_WIDTH], tl.float32)
    if SPLIT_WIDTH <= MERGED:
        # loaded once: loading them twice took so many registers, where the log-sum-exps are wanted
        # too, that a multiprocessor held two programs in place of three
        known = ()
        top = tl.full([GROUP_WIDTH], float("-inf"), tl.float32)
        for split in tl.static_range(SPLIT_WIDTH):
            found = _load_sums(sums, first, split, working, member, GROUP)
            known = known + (found,)  # type: ignore[assignment]  # noqa: RUF005
            top = tl.maximum(top, found[0])
        top = tl.where(top == float("-inf"), 0.0, top)
        for split in tl.static_range(SPLIT_WIDTH):
            total, merged = _add_part(
                *(total, merged, known[split], top, partial, first, split, working),
                *(member, dim, GROUP, DIM),
            )
    else:
        every = tl.arange(0, SPLIT_WIDTH)[:, None]
        top = tl.max(_load_sums(sums, first, every, working, member[None, :], GROUP)[0], 0)
        top = tl.where(top == float("-inf"), 0.0, top)
        for start in range(0, working, MERGED):
            for some in tl.static_range(MERGED):
                found = _load_sums(sums, first, start + some, working, member, GROUP)
                total, merged = _add_part(
                    *(total, merged, found, top, partial, first, start + some, working),
                    *(member, dim, GROUP, DIM),
                )
    return finished(merged, total, top)


@triton.jit
def _add_part(
    total,
    merged,
    found,
    top,
    partial,
    first,
    split,
    working,
    member,
    dim,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
):
    """`total` and `merged` with the part of a split, of which `found` are the sums."""
    best, part_total = found
    inside = (member < GROUP)[:, None] & (dim < DIM)[None, :] & (split < working)
    place = (first + split) * GROUP + member
    part = tl.load(
        partial + place[:, None] * DIM + dim[None, :],
        mask=inside,
        other=0.0,
        cache_modifier=".cg",
    )
    weight = tl.exp2(best - top)
    return total + part_total * weight, merged + part * weight[:, None]


@triton.jit
def finished(acc, total, top):
    """Attention and log2-sum-exps of sums under `top`; zeros and -inf where nothing was present."""
    some = tl.where(total == 0.0, 1.0, total)
    return acc / some[:, None], tl.where(total == 0.0, float("-inf"), top + tl.log2(some))


@triton.jit
def write_group(
    result,
    lse2,
    request,
    head,
    member,
    dim,
    out,
    lse,
    lse_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
):
    """Store the attention of a KV head's group, and its log-sum-exps where they are wanted."""
    place = ((request * KV_HEADS + head) * GROUP + member[:, None]) * DIM + dim[None, :]
    inside = (member < GROUP)[:, None] & (dim < DIM)[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
    if lse is not None:
        at = request * lse_stride[0] + (head * GROUP + member) * lse_stride[1]
        tl.store(lse + at, lse2 * LN2, mask=member < GROUP)


@triton.jit
def _load_sums(sums, first, split, working, member, GROUP: tl.constexpr):
    """Greatest logit and weights' sum of a split, past the first-level cache: others wrote them."""
    place = (first + split) * GROUP + member
    there = (split < working) & (member < GROUP)
    best = tl.load(sums + 2 * place, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums + 2 * place + 1, mask=there, other=0.0, cache_modifier=".cg")
    return best, total
