"""The best entries by score, for all layers, requests and heads in two launches, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import dependent, release_next, wait_for_previous
from specbench.kernels.selection.device import (
    LEAST,
    choose,
    collect,
    count_numbers,
    fill,
    load_rest,
    load_tile,
    threshold,
)
from specbench.kernels.selection.workspace import SelectionWorkspace

# types of scores: low bits that none of their values has as float32
_TYPES = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
# numbers for whose values no code of its own is compiled: a call's shape, and strides that would
# vectorise loads, whose layout would then differ from that of all else
_PLAIN = [
    *("rows", "requests", "sets", "length", "width", "sinks", "window"),
    *("scores_layer", "scores_request", "scores_set", "capacity", "found_stride"),
]


def select(
    scores: Tensor,
    ranked: Tensor,
    keep: Tensor,
    width: int,
    sinks: int = 0,
    window: int = 0,
    *,
    block_table: Tensor | None = None,
    page_size: int = 16,
    workspace: SelectionWorkspace | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The positions with the best scores, or their cache slots.

    Nothing waits for the host and the grids depend on shapes alone, so that a call with a workspace
    can be captured once it has been compiled by a first call.

    Parameters
    ----------
    scores : Tensor
        `[layers, R, S, L]` in fp32, bf16 or fp16, dense in L.
    ranked : Tensor
        Integers `[R]`, how many entries of a request are candidates.
    keep : Tensor
        Integers `[R]`, how many of them to keep, at most `width`.
    width : int
        Entries of the result's last axis, a bound known to the host.
    sinks, window : int
        The first and the last candidates that are kept whatever their score; they count
        towards `keep`.
    block_table : Tensor, optional
        int32 or int64 `[R, P]`, each request's pages in order: the result then holds slots.
    page_size : int
        Entries of a page.
    workspace : SelectionWorkspace, optional
        By default one is made for this call.
    out : Tensor, optional
        int32 or int64 `[layers, R, S, width]`, dense in its last axis.

    Returns
    -------
    Tensor
        `out`, or int64 `[layers, R, S, width]`: positions or slots in no order, -1 past
        ``min(keep, ranked)``. Among equal scores any may be chosen. NaN never is, unless it is
        among `sinks` or `window`: a list with too few numbers ends early.

    Raises
    ------
    ValueError
        Types, shapes or strides that the kernel cannot take, or a workspace that is too small.
    """
    layers, requests, sets, length = scores.shape
    rows = layers * requests * sets
    if out is None:
        out = torch.empty(layers, requests, sets, width, dtype=torch.int64, device=scores.device)
    _check(scores, ranked, keep, width, block_table, out)
    if out.numel() == 0:
        return out
    if workspace is None:
        workspace = SelectionWorkspace(rows, length, width, scores.device, dtype=scores.dtype)
    workspace.check(rows, length, width)
    launch = workspace.launch
    shape = (rows, requests, sets, length, width, sinks, window)
    # a page of no entries stands for positions, and then the table for nothing
    page = page_size
    if block_table is None:
        block_table, page = ranked[:, None], 0
    strides = (*scores.stride()[:3], *out.stride()[:3], block_table.stride(0))
    forced = sinks > 0 or window > 0
    grid = (min(rows, workspace.programs),)
    _select[grid](
        *(scores, ranked, keep, block_table, out, *shape, *strides),
        *(workspace.queue, workspace.failed, workspace.found),
        *(workspace.capacity, workspace.capacity * launch.columns),
        MARGIN=launch.margin,
        FORCED=forced,
        PAGE=page,
        COLUMNS=launch.columns,
        DEPTH=launch.depth,
        KEPT=launch.kept,
        SAMPLES=launch.samples,
        RUN=launch.run,
        BITS=_TYPES[scores.dtype],
        num_warps=launch.warps,
        maxnreg=launch.registers,
        **dependent(True, scores.device),
    )
    _rescue[grid](
        *(scores, ranked, keep, block_table, out, *shape, *strides),
        *(workspace.queue, workspace.failed),
        FORCED=forced,
        PAGE=page,
        COLUMNS=launch.columns,
        DEPTH=launch.depth,
        BITS=_TYPES[scores.dtype],
        num_warps=launch.warps,
        maxnreg=launch.registers,
        **dependent(True, scores.device),
    )
    return out


def _check(
    scores: Tensor,
    ranked: Tensor,
    keep: Tensor,
    width: int,
    block_table: Tensor | None,
    out: Tensor,
) -> None:
    layers, requests, sets, length = scores.shape
    if scores.dtype not in _TYPES:
        raise ValueError(f"scores are {scores.dtype}; expected fp32, bf16 or fp16")
    if not 0 <= width <= length:
        raise ValueError(f"width {width} is not between 0 and the {length} scores of a list")
    if out.shape != (layers, requests, sets, width) or out.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"out is {out.dtype} {tuple(out.shape)}; expected int32 or int64 "
            f"{(layers, requests, sets, width)}"
        )
    if ranked.shape != (requests,) or keep.shape != (requests,):
        raise ValueError(
            f"ranked and keep are {tuple(ranked.shape)} and {tuple(keep.shape)}; "
            f"expected a number for each of {requests} requests"
        )
    tensors = (scores, ranked, keep, out) + (() if block_table is None else (block_table,))
    # the stride of an axis of one entry means nothing
    if any(t.numel() and t.shape[-1] > 1 and t.stride(-1) != 1 for t in tensors):
        raise ValueError("all tensors must be dense in their last axis")


@triton.jit
def _row(row, requests, sets, layer_stride, request_stride, set_stride):
    """Where a row of `[layers, R, S, ...]` starts."""
    layer = (row // sets // requests).to(tl.int64)
    request = (row // sets % requests).to(tl.int64)
    member = (row % sets).to(tl.int64)
    return layer * layer_stride + request * request_stride + member * set_stride


@triton.jit(do_not_specialize=_PLAIN)
def _select(
    scores,
    ranked,
    keep,
    block_table,
    out,
    rows,
    requests,
    sets,
    length,
    width,
    sinks,
    window,
    scores_layer,
    scores_request,
    scores_set,
    out_layer,
    out_request,
    out_set,
    table_request,
    queue,
    failed,
    found,
    capacity,
    found_stride,
    MARGIN: tl.constexpr,
    FORCED: tl.constexpr,
    PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    KEPT: tl.constexpr,
    SAMPLES: tl.constexpr,
    RUN: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """List by list: a threshold from a sample, all that reaches it, the best of that."""
    TILE: tl.constexpr = COLUMNS * DEPTH
    own = found + tl.program_id(0).to(tl.int64) * found_stride
    wait_for_previous(PDL)
    row = tl.program_id(0)
    while row < rows:
        line = scores + _row(row, requests, sets, scores_layer, scores_request, scores_set)
        target = out + _row(row, requests, sets, out_layer, out_request, out_set)
        request = (row // sets % requests).to(tl.int64)
        pages = block_table + request * table_request
        entries = tl.minimum(tl.load(ranked + request), length).to(tl.int32)
        need = tl.minimum(tl.minimum(tl.load(keep + request), entries), width).to(tl.int32)
        need = tl.maximum(need, 0)
        if need > 0:
            bound = tl.full([], LEAST, tl.int64)
            # as many as the lists hold at least
            if entries > 2 * SAMPLES:
                bound = threshold(line, entries, need, MARGIN, COLUMNS, SAMPLES, RUN, BITS)
            # minus infinity has no predecessor: it is left to the rescue
            bound = tl.maximum(bound, LEAST + 1)
            counts = tl.zeros([COLUMNS], tl.int32)
            whole = entries // TILE * TILE
            if whole > 0:
                following = load_tile(line, 0, COLUMNS, DEPTH)
                for start in range(0, whole, TILE):
                    value = following
                    # on its way meanwhile; at the end the last tile again, for want of another
                    ahead = tl.minimum(start + TILE, whole - TILE)
                    following = load_tile(line, ahead, COLUMNS, DEPTH)
                    counts = collect(
                        *(value, own, counts, start, entries, bound, capacity, sinks, window),
                        *(FORCED, COLUMNS, DEPTH),
                    )
            value = load_rest(line, whole, entries, COLUMNS, DEPTH)
            counts = collect(
                *(value, own, counts, whole, entries, bound, capacity, sinks, window),
                *(FORCED, COLUMNS, DEPTH),
            )
            deepest = tl.max(counts, 0)
            good = (tl.sum(counts, 0) >= need) & (deepest + DEPTH <= capacity)
            # the lists are read by other threads than have written them
            tl.debug_barrier()
            if good:
                choose(
                    *(own, counts, deepest, entries, bound, counts, need, sinks, window),
                    *(pages, target, True, False, PAGE, COLUMNS, DEPTH, KEPT, BITS),
                )
            else:
                tl.store(failed + tl.atomic_add(queue + 1, 1, sem="relaxed"), row)
            tl.debug_barrier()
        fill(target, need, width, COLUMNS)
        row = tl.num_programs(0) + tl.atomic_add(queue, 1, sem="relaxed")
    release_next(PDL)
    # each program asks once in vain; the last one leaves the queue as it was
    if row == rows + tl.num_programs(0) - 1:
        tl.store(queue, 0)


@triton.jit(do_not_specialize=_PLAIN)
def _rescue(
    scores,
    ranked,
    keep,
    block_table,
    out,
    rows,
    requests,
    sets,
    length,
    width,
    sinks,
    window,
    scores_layer,
    scores_request,
    scores_set,
    out_layer,
    out_request,
    out_set,
    table_request,
    queue,
    failed,
    FORCED: tl.constexpr,
    PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A list whose threshold let too few or too many through: search the scores themselves."""
    wait_for_previous(PDL)
    lists = tl.load(queue + 1)
    turn = tl.atomic_add(queue + 2, 1)
    while turn < lists:
        row = tl.load(failed + turn)
        line = scores + _row(row, requests, sets, scores_layer, scores_request, scores_set)
        target = out + _row(row, requests, sets, out_layer, out_request, out_set)
        request = (row // sets % requests).to(tl.int64)
        pages = block_table + request * table_request
        entries = tl.minimum(tl.load(ranked + request), length).to(tl.int32)
        need = tl.minimum(tl.minimum(tl.load(keep + request), entries), width).to(tl.int32)
        counts = count_numbers(line, entries, sinks, window, FORCED, COLUMNS, DEPTH)
        bound = tl.full([], LEAST, tl.int64)
        deepest = tl.cdiv(entries, COLUMNS)
        chosen = choose(
            *(line, counts, deepest, entries, bound, counts, need, sinks, window),
            *(pages, target, False, FORCED, PAGE, COLUMNS, DEPTH, DEPTH, BITS),
        )
        fill(target, chosen, width, COLUMNS)
        turn = tl.atomic_add(queue + 2, 1)
    # by now every program has read how many there were
    if turn == lists + tl.num_programs(0) - 1:
        tl.store(queue + 1, 0)
        tl.store(queue + 2, 0)
