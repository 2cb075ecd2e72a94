"""Attention of one query a request over a list of selected entries and a tail, in Triton."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    FETCHERS,
    dependent,
    fetch_ahead,
    fetchable,
    release_next,
    to_fetch,
    wait_for_previous,
)
from specbench.kernels.sparse_attention.device import (
    attend,
    entry_places,
    fetch_list,
    fetch_selected,
    finished,
    is_entry,
    merge_splits,
    write_group,
)
from specbench.kernels.sparse_attention.workspace import SparseAttentionWorkspace

_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def sparse_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    selected: Tensor,
    tail: Tensor,
    scale: float,
    unit: int = 1,
    tail_caches: tuple[Tensor, Tensor] | None = None,
    *,
    counts: Tensor | None = None,
    workspace: SparseAttentionWorkspace | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    settled: bool = False,
    ahead: Tensor | None = None,
) -> Tensor:
    """Attention over the union of two lists of slots, in one launch.

    Nothing waits for the host and the grid depends on shapes alone, so that a call with a
    workspace can be captured once it has been compiled by a first call.

    Parameters
    ----------
    q : Tensor
        `[R, 1, H, D]` in bf16, fp16 or fp32.
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]` of `q`'s type, of any but equal strides.
    selected : Tensor
        int32 or int64 `[R, S, K]` slots, or runs of `unit` slots; -1 for none. S is Hkv, or 1
        where all heads share a list.
    tail : Tensor
        int32 or int64 `[R, T]` slots that every head reads, -1 for none. No slot may stand in both
        lists.
    scale : float
        Multiplies the logits before the softmax.
    unit : int
        Slots of a run: i stands for those from ``i * unit`` on. With the page size, runs are pages.
    tail_caches : pair of Tensor, optional
        Keys and values that the tail's slots are of, as `k_cache` and `v_cache` but with pages and
        strides of their own, the elements of a head excepted. A captured call keeps to their place.
    counts : Tensor, optional
        Integers `[R]` or `[R, S]`: slots of `selected` at or past it are not looked at. The work
        of a short list is then split evenly too.
    workspace : SparseAttentionWorkspace, optional
        By default one is made for this call.
    out : Tensor, optional
        `[R, 1, H, D]`, contiguous.
    lse : Tensor, optional
        float32 `[R, H]`, written: natural log-sum-exp of the scaled logits; -inf where the lists
        are empty.
    settled : bool
        `selected`, `counts`, `tail` and the entries that `selected` names were written before the
        last product ahead of this kernel (see `release_next`): these may then be read while the
        kernel ahead ends.
    ahead : Tensor, optional
        A weight that is read soon; see `to_fetch`.

    Returns
    -------
    Tensor
        `[R, 1, H, D]`; zeros for a request whose lists are empty.

    Raises
    ------
    ValueError
        Types, shapes or strides that the kernel cannot take, or a workspace that is too small.
    """
    requests, _, heads, dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    _check(q, k_cache, v_cache, selected, tail)
    # by how many elements the tail's caches begin behind the others
    shifts: tuple[int | None, int | None] = None, None
    tail_strides: tuple[int, ...] = (0, 0, 0)
    tail_page = 1
    if tail_caches is not None:
        k_tail, v_tail = tail_caches
        _check(q, k_tail, v_tail, selected, tail)
        if k_tail.stride(3) != k_cache.stride(3):
            raise ValueError(
                f"the tail's heads have elements {k_tail.stride(3)} apart, those of the caches "
                f"{k_cache.stride(3)}"
            )
        size = q.element_size()
        shifts = (
            (k_tail.data_ptr() - k_cache.data_ptr()) // size,
            (v_tail.data_ptr() - v_cache.data_ptr()) // size,
        )
        tail_strides, tail_page = k_tail.stride()[:3], k_tail.shape[1]
    if counts is not None and counts.shape not in (selected.shape[:1], selected.shape[:2]):
        raise ValueError(
            f"counts of shape {tuple(counts.shape)} for lists of shape {tuple(selected.shape)}"
        )
    if workspace is None:
        workspace = SparseAttentionWorkspace(requests, heads, kv_heads, dim, q.dtype, q.device)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sets, width = selected.shape[1], selected.shape[2] * unit
    entries = width + tail.shape[1]
    launch, splits = workspace.cut(requests, heads, kv_heads, dim, entries, settled)
    group_width = triton.next_power_of_2(heads // kv_heads)
    dim_width = max(16, triton.next_power_of_2(dim))
    split_width = triton.next_power_of_2(splits)
    page, token, head, feature = k_cache.stride()
    following, parts = to_fetch(ahead, q.device)
    # programs beside a list's splits, which fetch
    lanes = splits + (0 if following is None else triton.cdiv(FETCHERS, requests * kv_heads))
    _sparse_attention[(requests * lanes * kv_heads,)](
        q,
        k_cache,
        v_cache,
        *shifts,
        selected,
        tail,
        counts,
        out,
        lse,
        (0, 0) if lse is None else lse.stride(),
        workspace.partial,
        workspace.sums,
        workspace.arrivals,
        following,
        scale * math.log2(math.e),
        splits,
        lanes,
        width,
        tail.shape[1],
        q.stride(0),
        q.stride(2),
        page,
        token,
        head,
        feature,
        *tail_strides,
        selected.stride(0),
        selected.stride(1) if sets > 1 else 0,
        tail.stride(0),
        0 if counts is None else counts.stride(0),
        counts.stride(1) if counts is not None and counts.dim() == 2 and sets > 1 else 0,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        DIM=dim,
        PAGE=page_size,
        TAIL_PAGE=tail_page,
        UNIT=unit,
        # then a slot's place does not depend on its page
        FLAT=page == page_size * token,
        TILE=launch.tile,
        COPIES=max(1, 32 * launch.warps // launch.tile),
        STAGES=launch.stages,
        PARTS=parts,
        SETTLED=settled
        and dim * q.element_size() % 16 == 0
        and fetchable(k_cache)
        and fetchable(v_cache),
        EARLY=launch.early,
        PAIRED=v_cache.data_ptr() - k_cache.data_ptr() == dim * q.element_size(),
        HELD=settled and launch.held and splits > 1,
        ROWS=max(16, group_width),
        DIM_WIDTH=dim_width,
        GROUP_WIDTH=group_width,
        SPLIT_WIDTH=split_width,
        MERGED=launch.merged(split_width, group_width * dim_width),
        num_warps=launch.warps,
        **dependent(True, q.device),
    )
    return out


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, selected: Tensor, tail: Tensor) -> None:
    kv_heads = k_cache.shape[2]
    if q.dtype not in _TYPES or not q.dtype == k_cache.dtype == v_cache.dtype:
        raise ValueError(
            f"query and caches are {q.dtype}, {k_cache.dtype} and {v_cache.dtype}; "
            "all must be bf16, fp16 or fp32 alike"
        )
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride():
        raise ValueError(
            f"the caches differ in shape or strides: {tuple(k_cache.shape)} with "
            f"{k_cache.stride()}, {tuple(v_cache.shape)} with {v_cache.stride()}"
        )
    if q.shape[1] != 1 or q.shape[2] % kv_heads or q.stride(3) != 1:
        raise ValueError(
            f"query of shape {tuple(q.shape)} and strides {q.stride()}: expected [R, 1, H, D], "
            f"dense in D, with H a multiple of {kv_heads} KV heads"
        )
    if selected.shape[1] not in (1, kv_heads):
        raise ValueError(f"{selected.shape[1]} lists a request; expected 1 or {kv_heads}")
    if any(x.numel() and x.shape[-1] > 1 and x.stride(-1) != 1 for x in (selected, tail)):
        raise ValueError("lists of slots must be dense in their last axis")


@triton.jit(do_not_specialize=["splits", "lanes", "selected_width", "tail_width"])
def _sparse_attention(
    q,
    k_cache,
    v_cache,
    k_shift,
    v_shift,
    selected,
    tail,
    counts,
    out,
    lse,
    lse_stride,
    partial,
    sums,
    arrivals,
    following,
    scale,
    splits,
    lanes,
    selected_width,
    tail_width,
    q_request,
    q_head,
    kv_page,
    kv_token,
    kv_head,
    kv_dim,
    tail_kv_page,
    tail_kv_token,
    tail_kv_head,
    selected_request,
    selected_set,
    tail_request,
    counts_request,
    counts_set,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    TAIL_PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    FLAT: tl.constexpr,
    TILE: tl.constexpr,
    COPIES: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    SETTLED: tl.constexpr,
    EARLY: tl.constexpr,
    PAIRED: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    SPLIT_WIDTH: tl.constexpr,
    MERGED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One split of one KV head's list; the last split of a list to finish merges them all."""
    head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(0) // KV_HEADS % lanes
    request = (tl.program_id(0) // KV_HEADS // lanes).to(tl.int64)
    if PDL and not SETTLED:
        wait_for_previous(PDL)
    listed = selected_width
    if counts is not None:
        at_counts = counts + request * counts_request + head * counts_set
        count = tl.load(at_counts, cache_modifier=".cg")
        listed = tl.minimum(listed, count.to(tl.int32))
    entries = listed + tail_width
    # the other splits of a short list have nothing to do, and nobody waits for them
    if HELD:
        # the last that works has the tail, which the others need not wait for
        sharing = tl.minimum(tl.cdiv(listed, TILE), splits - 1)
        working = sharing + 1
        each = tl.maximum(sharing, 1)
        first = tl.where(split < sharing, split * listed // each, listed)
        last = tl.where(split < sharing, (split + 1) * listed // each, entries)
    else:
        working = tl.maximum(tl.minimum(tl.cdiv(entries, TILE), splits), 1)
        first = split * entries // working
        last = (split + 1) * entries // working
    own_selected = selected + request * selected_request + head * selected_set
    own_tail = tail + request * tail_request
    dim = tl.arange(0, DIM_WIDTH)
    feature = head.to(tl.int64) * kv_head + dim * kv_dim
    own_keys = (k_cache + feature)[None, :]
    own_values = (v_cache + feature)[None, :]
    tail_head = head.to(tl.int64) * (tail_kv_head - kv_head)
    begin = first
    if HELD:
        begin = first + TILE
        first_entry = first + tl.arange(0, TILE)
        first_present, k_place, v_place = entry_places(
            own_selected,
            own_tail,
            first_entry,
            listed,
            last,
            k_shift,
            v_shift,
            kv_page,
            kv_token,
            tail_kv_page,
            tail_kv_token,
            tail_head,
            PAGE,
            TAIL_PAGE,
            UNIT,
            FLAT,
            True,
            COPIES,
        )
        k_first = own_keys + k_place[:, None]
        v_first = own_values + v_place[:, None]
        first_readable = is_entry(k_place[:, None]) & (dim < DIM)[None, :]
        early = first_readable & (first < listed)
        # past the first-level cache, as whatever is read before the wait: what it holds may be old
        early_keys = tl.load(k_first, mask=early, other=0.0, cache_modifier=".cg")
        early_values = tl.load(v_first, mask=early, other=0.0, cache_modifier=".cg")
    if PDL:
        last_listed = tl.minimum(last, listed)
        # the loop reads its slots a tile at a time, and waits for them
        fetch_list(own_selected, begin, last_listed, UNIT)
        if SETTLED and EARLY > 0:
            fetch_selected(
                k_cache,
                v_cache,
                own_selected,
                head.to(tl.int64) * kv_head,
                begin,
                last_listed,
                kv_page,
                kv_token,
                PAGE,
                UNIT,
                FLAT,
                DIM,
                PAIRED,
                TILE * EARLY,
            )
        if SETTLED:
            wait_for_previous(PDL)
    if split >= splits:
        groups = tl.num_programs(0) // lanes
        own_group = tl.program_id(0) // KV_HEADS // lanes * KV_HEADS + head
        fetcher = (split - splits) * groups + own_group
        fetch_ahead(following, fetcher, (lanes - splits) * groups, PARTS)
    if split < working:
        row = tl.arange(0, ROWS)
        in_group = (row < GROUP)[:, None] & (dim < DIM)[None, :]
        query = tl.load(
            q + request * q_request + (head * GROUP + row[:, None]) * q_head + dim[None, :],
            mask=in_group,
            other=0.0,
        )
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, TILE], tl.float32)
        acc = tl.zeros([ROWS, DIM_WIDTH], tl.float32)
        if HELD:
            if first < listed:
                best, total, acc = attend(
                    query, early_keys, early_values, first_present, best, total, acc, scale
                )
            else:
                # the kernel before may have written these
                keys = tl.load(k_first, mask=first_readable, other=0.0)
                values = tl.load(v_first, mask=first_readable, other=0.0)
                best, total, acc = attend(
                    query, keys, values, first_present, best, total, acc, scale
                )
        # without this, filling the pipeline costs its time even where nothing is left
        if not HELD or begin < last:
            for start in tl.range(begin, last, TILE, num_stages=STAGES):
                entry = start + tl.arange(0, TILE)
                present, k_place, v_place = entry_places(
                    own_selected,
                    own_tail,
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
                    PAGE,
                    TAIL_PAGE,
                    UNIT,
                    FLAT,
                    False,
                    COPIES,
                )
                readable = is_entry(k_place[:, None]) & (dim < DIM)[None, :]
                k_at = own_keys + k_place[:, None]
                v_at = own_values + v_place[:, None]
                keys = tl.load(k_at, mask=readable, other=0.0)
                values = tl.load(v_at, mask=readable, other=0.0)
                best, total, acc = attend(query, keys, values, present, best, total, acc, scale)

        total = tl.sum(total, 1)
        release_next(PDL)
        group = request * KV_HEADS + head
        if SPLIT_WIDTH == 1:
            result, lse2 = finished(acc, total, best)
            write_group(
                result, lse2, request, head, row, dim, out, lse, lse_stride, KV_HEADS, GROUP, DIM
            )
        else:
            own = (group * splits + split) * GROUP + row
            tl.store(partial + own[:, None] * DIM + dim[None, :], acc, mask=in_group)
            tl.store(sums + 2 * own, best, mask=row < GROUP)
            tl.store(sums + 2 * own + 1, total, mask=row < GROUP)
            # the one thread that counts releases what all threads have stored
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals + group, 1, sem="acq_rel", scope="gpu")
            if arrived == working - 1:
                # ready for the next call
                tl.store(arrivals + group, 0)
                result, lse2 = merge_splits(
                    partial,
                    sums,
                    group * splits,
                    working,
                    GROUP,
                    DIM,
                    DIM_WIDTH,
                    GROUP_WIDTH,
                    SPLIT_WIDTH,
                    MERGED,
                )
                member = tl.arange(0, GROUP_WIDTH)
                write_group(
                    *(result, lse2, request, head, member, dim),
                    *(out, lse, lse_stride, KV_HEADS, GROUP, DIM),
                )
