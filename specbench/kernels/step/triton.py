"""All layers of a draft step in one launch of resident programs, in Triton."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import fetchable
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.qkv.device import load_places
from specbench.kernels.step.attention import attention, fetch_first, first_slots, load_entries
from specbench.kernels.step.barrier import afresh, arrive, wait
from specbench.kernels.step.plan import StepLaunch, StepPlan, choose, plan
from specbench.kernels.step.products import (
    begin_onto,
    begin_qkv,
    embed_rows,
    fetch_gate_up,
    fetch_onto,
    fetch_qkv,
    gate_up,
    onto_stream,
    qkv,
)
from specbench.kernels.step.weights import COLUMNS, StepWeights
from specbench.kernels.step.workspace import StepWorkspace

# phases of a layer, each behind a barrier; all of them is -1
EMBED, QKV, ATTENTION, O, GATE_UP, DOWN = range(6)
_WHOLE = tl.constexpr(-1)
_EMBED, _QKV, _ATTENTION = tl.constexpr(EMBED), tl.constexpr(QKV), tl.constexpr(ATTENTION)
_O, _GATE_UP, _DOWN = tl.constexpr(O), tl.constexpr(GATE_UP), tl.constexpr(DOWN)
_COLUMNS = tl.constexpr(COLUMNS)
# every phase's addresses would be computed once, and held in registers that others need
_ASSEMBLER = "--register-usage-level=0"


def draft_layers(
    tokens: Tensor,
    weights: StepWeights,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    selected: Tensor,
    tail: Tensor,
    scale: float,
    workspace: StepWorkspace,
    *,
    lse: Tensor | None = None,
    launch: StepLaunch | None = None,
) -> tuple[Tensor, Prenormed]:
    """From tokens to the residual stream behind the last layer, as the kernels of a layer in turn.

    Parameters
    ----------
    tokens : Tensor
        int64 `[n]`, n at most 64, one token a request.
    weights : StepWeights
    cos, signed_sin : Tensor
        Tables of the rotation.
    positions, slots : Tensor
        `[n]`, as for `qkv.project_rope_write_kv`.
    keys, values : Tensor
        `[layers, pages, page_size, Hkv, D]`, of any but equal strides, dense in D.
    selected : Tensor
        Integers `[layers, n, S, K]`, S being Hkv or 1: slots, -1 for none; they and their entries
        are written before the launch.
    tail : Tensor
        Integers `[n, T]`, the slots behind them, the token's own among them, -1 for none.
    scale : float
        Of the logits.
    workspace : StepWorkspace
        For launches that follow one another on a stream; returned tensors are part of it.
    lse : Tensor, optional
        `[layers, n, H]`, where the log-sum-exps of the logits are left.
    launch : StepLaunch, optional
        Instead of the table's.

    Returns
    -------
    stream : Tensor
        `[n, hidden]`.
    begun : Prenormed
        The final norm begun on it.
    """
    shape, rows = weights.shape, len(tokens)
    width, tails = selected.shape[-1], tail.shape[-1]
    launch = launch or choose(rows, shape.dim)
    item = weights.embed.element_size()
    cut = plan(shape, rows, width, tails, launch, tokens.device, item)
    _check(keys, values, selected, tail)
    workspace.fit(cut, shape, rows)
    page, sets = keys.shape[2], selected.shape[2]
    head_stride = selected.stride(2) if sets > 1 else 0
    interpreted = triton.knobs.runtime.interpret

    def run(only: int, begin: int, end: int) -> None:
        options: dict[str, Any] = {"launch_cooperative_grid": only < 0, "ptx_options": _ASSEMBLER}
        _draft_layers[(cut.programs,)](
            tokens,
            weights.embed,
            weights.embed.stride(0),
            weights.first_norm,
            weights.addresses,
            workspace.stream,
            workspace.rows,
            workspace.squares,
            workspace.mlp_rows,
            workspace.mlp_squares,
            workspace.q,
            workspace.attended,
            workspace.gated,
            positions,
            slots,
            cos,
            signed_sin,
            keys,
            values,
            keys.stride(0),
            keys.stride()[1:],
            selected,
            selected.stride(0),
            (selected.stride(1), head_stride),
            tail,
            tail.stride(0),
            lse,
            0 if lse is None else lse.stride(0),
            (0, 0) if lse is None else lse.stride()[1:],
            workspace.partial,
            workspace.parts,
            workspace.sums,
            workspace.arrivals,
            workspace.counters,
            workspace.barrier,
            rows,
            begin,
            end,
            width,
            tails,
            cut.splits,
            scale * math.log2(math.e),
            weights.eps,
            M=shape,
            PAGE=page,
            FLAT=keys.stride(1) == page * keys.stride(2),
            BESIDE=values.data_ptr() - keys.data_ptr() == shape.dim * item,
            FETCHABLE=shape.dim * item % 16 == 0 and fetchable(keys) and fetchable(values),
            QKV_CUT=cut.qkv,
            O_CUT=cut.o,
            GATE_UP_CUT=cut.gate_up,
            DOWN_CUT=cut.down,
            LISTS=cut.lists,
            AHEAD=launch.ahead and not interpreted,
            BIASED=weights.biased,
            ROWS=cut.rows,
            PROGRAMS=cut.programs,
            ONLY=only,
            num_warps=launch.num_warps,
            **options,
        )

    layers = len(weights.addresses)
    if interpreted:
        # programs run one after the other, so that none may wait for another
        run(EMBED, 0, 0)
        for layer in range(layers):
            for phase in (QKV, ATTENTION, O, GATE_UP, DOWN):
                run(phase, layer, layer + 1)
    else:
        run(-1, 0, layers)
    return workspace.stream[:rows], Prenormed(
        workspace.rows[:rows], workspace.squares[: cut.down.tiles]
    )


def _check(keys: Tensor, values: Tensor, selected: Tensor, tail: Tensor) -> None:
    if keys.shape != values.shape or keys.stride() != values.stride() or keys.stride(4) != 1:
        raise ValueError(
            f"keys of shape {tuple(keys.shape)} and strides {keys.stride()}, values of "
            f"{tuple(values.shape)} and {values.stride()}: expected the same, dense in the last axis"
        )
    if selected.shape[2] not in (1, keys.shape[3]):
        raise ValueError(f"{selected.shape[2]} lists a request; expected 1 or {keys.shape[3]}")
    if any(x.shape[-1] > 1 and x.stride(-1) != 1 for x in (selected, tail)):
        raise ValueError("lists of slots must be dense in their last axis")


@triton.jit(do_not_specialize=["n", "begin", "end", "width", "tail_width", "splits", "list_layer", "lse_layer"])
def _draft_layers(
    tokens,
    embed,
    embed_stride,
    first_norm,
    addresses,
    stream,
    rows,
    squares,
    mlp_rows,
    mlp_squares,
    q,
    attended,
    gated,
    positions,
    slots,
    cos,
    signed_sin,
    keys,
    values,
    kv_layer,
    kv_stride,
    selected,
    list_layer,
    list_stride,
    tail,
    tail_stride,
    lse,
    lse_layer,
    lse_stride,
    partial,
    parts,
    sums,
    arrivals,
    counters,
    barrier,
    n,
    begin,
    end,
    width,
    tail_width,
    splits,
    scale,
    eps,
    M: tl.constexpr,
    PAGE: tl.constexpr,
    FLAT: tl.constexpr,
    BESIDE: tl.constexpr,
    FETCHABLE: tl.constexpr,
    QKV_CUT: tl.constexpr,
    O_CUT: tl.constexpr,
    GATE_UP_CUT: tl.constexpr,
    DOWN_CUT: tl.constexpr,
    LISTS: tl.constexpr,
    AHEAD: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ONLY: tl.constexpr,
):
    """Phases of all layers, or one of them (`ONLY`), for which nobody waits then.

    Between a program's arrival at a barrier and its wait it reads, or fetches into L2, what the
    phases behind the barrier need and no phase writes.
    """
    HIDDEN: tl.constexpr = M.hidden
    INNER: tl.constexpr = M.inner
    WIDTH: tl.constexpr = M.heads * M.dim
    program = tl.program_id(0)
    position, slot = load_places(positions, slots, tl.arange(0, ROWS), n)
    units = n * M.kv_heads * splits
    arrived = 0
    if ONLY == _WHOLE or ONLY == _EMBED:
        start = stream, rows, squares, n
        embed_rows(
            *(program, tokens, embed, embed_stride, first_norm),
            *start,
            *(HIDDEN, DOWN_CUT, ROWS, PROGRAMS),
        )
        if ONLY == _WHOLE:
            arrive(barrier)
            arrived += PROGRAMS
    for layer in tl.range(begin, end, disable_licm=True):
        own = addresses + layer * _COLUMNS
        qkv_weight = tl.multiple_of(tl.load(own).to(stream.dtype), 16)
        bias = None
        if BIASED:
            bias = tl.multiple_of(tl.load(own + 1).to(stream.dtype), 16)
        o_weight = tl.multiple_of(tl.load(own + 2).to(stream.dtype), 16)
        k_cache = keys + layer * kv_layer.to(tl.int64)
        v_cache = values + layer * kv_layer.to(tl.int64)
        lists = selected + layer * list_layer.to(tl.int64)
        lse_at = lse
        if lse is not None:
            lse_at = lse + layer * lse_layer.to(tl.int64)
        gate_up_weight = tl.multiple_of(tl.load(own + 4).to(stream.dtype), 16)
        entries = first_slots(program, units, lists, list_stride, width, splits, M, LISTS.tile)

        if ONLY == _WHOLE or ONLY == _QKV:
            program = afresh(program, ONLY != _WHOLE)
            nil = afresh(0, ONLY != _WHOLE) * 16
            turn = cos, signed_sin, position
            begun = begin_qkv(program, qkv_weight, bias, *turn, n, M, QKV_CUT, ROWS)
            if AHEAD:
                if FETCHABLE:
                    fetch_first(
                        *(program, entries, k_cache, v_cache, kv_stride), M, PAGE, FLAT, BESIDE
                    )
                if O_CUT.fetch:
                    fetch_onto(program, o_weight, WIDTH, HIDDEN, O_CUT)
            if ONLY == _WHOLE:
                wait(barrier, arrived)
            qkv(
                *(program, begun, rows + nil, squares + nil, qkv_weight),
                bias,
                *turn,
                *(slot, q + nil, k_cache, v_cache, kv_stride, n, eps),
                *(M, QKV_CUT, DOWN_CUT.tiles, PAGE, ROWS, PROGRAMS),
            )
            if ONLY == _WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        mlp_norm = tl.multiple_of(tl.load(own + 3).to(stream.dtype), 16)
        if ONLY == _WHOLE or ONLY == _ATTENTION:
            program = afresh(program, ONLY != _WHOLE)
            nil = afresh(0, ONLY != _WHOLE) * 16
            head = program % M.kv_heads
            held = load_entries(
                *(entries, head, k_cache, v_cache, kv_stride),
                *(M.dim, LISTS.dim_width, PAGE, FLAT),
            )
            if AHEAD and GATE_UP_CUT.fetch:
                fetch_gate_up(program, gate_up_weight, M, PROGRAMS)
            if ONLY == _WHOLE:
                wait(barrier, arrived)
            attention(
                *(program, entries, held, q + nil, k_cache, v_cache, kv_stride),
                *(lists, list_stride, tail + nil, tail_stride, attended + nil),
                lse_at,
                *(lse_stride, partial + nil, sums + nil, arrivals, units, width, tail_width, splits, scale),
                *(M, LISTS, PAGE, FLAT, PROGRAMS),
            )
            if ONLY == _WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        # a phase ahead of their use
        down_weight = tl.multiple_of(tl.load(own + 5).to(stream.dtype), 16)
        next_norm = tl.multiple_of(tl.load(own + 6).to(stream.dtype), 16)
        if ONLY == _WHOLE or ONLY == _O:
            program = afresh(program, ONLY != _WHOLE)
            nil = afresh(0, ONLY != _WHOLE) * 16
            begun = begin_onto(
                *(program, o_weight, mlp_norm, stream + nil, n), WIDTH, HIDDEN, O_CUT, ROWS
            )
            if ONLY == _WHOLE:
                wait(barrier, arrived)
            made = stream + nil, mlp_rows + nil, mlp_squares + nil, parts + nil, counters, n
            onto_stream(
                *(program, begun, attended + nil, o_weight, mlp_norm),
                *made,
                *(WIDTH, HIDDEN, O_CUT, ROWS, PROGRAMS),
            )
            if ONLY == _WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        next_qkv = tl.multiple_of(tl.load(own + 7).to(stream.dtype), 16)
        if ONLY == _WHOLE or ONLY == _GATE_UP:
            program = afresh(program, ONLY != _WHOLE)
            nil = afresh(0, ONLY != _WHOLE) * 16
            if AHEAD and DOWN_CUT.fetch:
                fetch_onto(program, down_weight, INNER, HIDDEN, DOWN_CUT)
            if ONLY == _WHOLE:
                wait(barrier, arrived)
            gate_up(
                *(program, mlp_rows + nil, mlp_squares + nil, gate_up_weight, gated + nil, n, eps),
                *(M, GATE_UP_CUT, O_CUT.tiles, ROWS, PROGRAMS),
            )
            if ONLY == _WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        if ONLY == _WHOLE or ONLY == _DOWN:
            program = afresh(program, ONLY != _WHOLE)
            nil = afresh(0, ONLY != _WHOLE) * 16
            begun = begin_onto(
                *(program, down_weight, next_norm, stream + nil, n), INNER, HIDDEN, DOWN_CUT, ROWS
            )
            if AHEAD and QKV_CUT.fetch:
                fetch_qkv(program, next_qkv, M, QKV_CUT)
            if ONLY == _WHOLE:
                wait(barrier, arrived)
            made = stream + nil, rows + nil, squares + nil, parts + nil, counters, n
            onto_stream(
                *(program, begun, gated + nil, down_weight, next_norm),
                *made,
                *(INNER, HIDDEN, DOWN_CUT, ROWS, PROGRAMS),
            )
            if ONLY == _WHOLE:
                if arrive(barrier) == arrived + PROGRAMS - 1 and layer + 1 == end:
                    # nobody waits any more: ready for the next launch
                    tl.store(barrier, 0)
                arrived += PROGRAMS
