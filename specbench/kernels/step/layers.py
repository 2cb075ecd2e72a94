"""The kernel of a step: its phases in turn, and what each reads or fetches before its barrier."""

import triton
import triton.language as tl

from specbench.kernels.qkv.device import load_places
from specbench.kernels.step.attention import attention, fetch_first, first_slots, load_entries
from specbench.kernels.step.barrier import afresh, arrive, wait
from specbench.kernels.step.plan import COLUMNS
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

# phases, each behind a barrier; the first is of a step, the others of a layer
ALL = -1
EMBED, QKV, ATTENTION, OUT, GATE_UP, DOWN = PHASES = range(6)
_ALL, _EMBED, _QKV = tl.constexpr(ALL), tl.constexpr(EMBED), tl.constexpr(QKV)
_ATTENTION, _OUT = tl.constexpr(ATTENTION), tl.constexpr(OUT)
_GATE_UP, _DOWN = tl.constexpr(GATE_UP), tl.constexpr(DOWN)
_COLUMNS = tl.constexpr(COLUMNS)


@triton.jit(
    do_not_specialize=[
        "n",
        "begin",
        "end",
        "width",
        "tail_width",
        "splits",
        "list_layer",
        "lse_layer",
    ]
)
def all_layers(
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
    WHOLE: tl.constexpr = ONLY == _ALL
    HIDDEN: tl.constexpr = M.hidden
    INNER: tl.constexpr = M.inner
    WIDTH: tl.constexpr = M.heads * M.dim
    program = tl.program_id(0)
    position, slot = load_places(positions, slots, tl.arange(0, ROWS), n)
    units = n * M.kv_heads * splits
    arrived = 0
    if WHOLE or ONLY == _EMBED:
        start = stream, rows, squares, n
        embed_rows(
            *(program, tokens, embed, embed_stride, first_norm),
            *start,
            *(HIDDEN, DOWN_CUT, ROWS, PROGRAMS),
        )
        if WHOLE:
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
        # those without a tile of qkv have longer for their entries
        reader = PROGRAMS - 1 - program
        entries = first_slots(reader, units, lists, list_stride, width, splits, M, LISTS.tile)

        if WHOLE or ONLY == _QKV:
            program = afresh(program, not WHOLE)
            nil = afresh(0, not WHOLE) * 16
            turn = cos, signed_sin, position
            begun = begin_qkv(program, qkv_weight, bias, *turn, n, M, QKV_CUT, ROWS)
            if AHEAD:
                if FETCHABLE:
                    fetch_first(
                        *(reader, entries, k_cache, v_cache, kv_stride), M, PAGE, FLAT, BESIDE
                    )
                if O_CUT.fetch:
                    fetch_onto(program, o_weight, WIDTH, HIDDEN, O_CUT)
            if WHOLE:
                wait(barrier, arrived)
            qkv(
                *(program, begun, rows + nil, squares + nil, qkv_weight),
                bias,
                *turn,
                *(slot, q + nil, k_cache, v_cache, kv_stride, n, eps),
                *(M, QKV_CUT, DOWN_CUT.tiles, PAGE, ROWS, PROGRAMS),
            )
            if WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        mlp_norm = tl.multiple_of(tl.load(own + 3).to(stream.dtype), 16)
        if WHOLE or ONLY == _ATTENTION:
            program = afresh(program, not WHOLE)
            nil = afresh(0, not WHOLE) * 16
            head = reader % M.kv_heads
            held = load_entries(
                *(entries, head, k_cache, v_cache, kv_stride),
                *(M.dim, LISTS.dim_width, PAGE, FLAT),
            )
            if AHEAD and GATE_UP_CUT.fetch:
                fetch_gate_up(program, gate_up_weight, M, PROGRAMS)
            if WHOLE:
                wait(barrier, arrived)
            attention(
                *(reader, entries, held, q + nil, k_cache, v_cache, kv_stride),
                *(lists, list_stride, tail + nil, tail_stride, attended + nil),
                lse_at,
                *(
                    lse_stride,
                    partial + nil,
                    sums + nil,
                    arrivals,
                    units,
                    width,
                    tail_width,
                    splits,
                    scale,
                ),
                *(M, LISTS, PAGE, FLAT, PROGRAMS),
            )
            if WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        # a phase ahead of their use
        down_weight = tl.multiple_of(tl.load(own + 5).to(stream.dtype), 16)
        next_norm = tl.multiple_of(tl.load(own + 6).to(stream.dtype), 16)
        if WHOLE or ONLY == _OUT:
            program = afresh(program, not WHOLE)
            nil = afresh(0, not WHOLE) * 16
            begun = begin_onto(
                *(program, o_weight, mlp_norm, stream + nil, n), WIDTH, HIDDEN, O_CUT, ROWS
            )
            if WHOLE:
                wait(barrier, arrived)
            made = stream + nil, mlp_rows + nil, mlp_squares + nil, parts + nil, counters, n
            onto_stream(
                *(program, begun, attended + nil, o_weight, mlp_norm),
                *made,
                *(WIDTH, HIDDEN, O_CUT, ROWS, PROGRAMS),
            )
            if WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        next_qkv = tl.multiple_of(tl.load(own + 7).to(stream.dtype), 16)
        if WHOLE or ONLY == _GATE_UP:
            program = afresh(program, not WHOLE)
            nil = afresh(0, not WHOLE) * 16
            if AHEAD and DOWN_CUT.fetch:
                fetch_onto(program, down_weight, INNER, HIDDEN, DOWN_CUT)
            if WHOLE:
                wait(barrier, arrived)
            gate_up(
                *(program, mlp_rows + nil, mlp_squares + nil, gate_up_weight, gated + nil, n, eps),
                *(M, GATE_UP_CUT, O_CUT.tiles, ROWS, PROGRAMS),
            )
            if WHOLE:
                arrive(barrier)
                arrived += PROGRAMS

        if WHOLE or ONLY == _DOWN:
            program = afresh(program, not WHOLE)
            nil = afresh(0, not WHOLE) * 16
            begun = begin_onto(
                *(program, down_weight, next_norm, stream + nil, n), INNER, HIDDEN, DOWN_CUT, ROWS
            )
            if AHEAD and QKV_CUT.fetch:
                fetch_qkv(program, next_qkv, M, QKV_CUT)
            if WHOLE:
                wait(barrier, arrived)
            made = stream + nil, rows + nil, squares + nil, parts + nil, counters, n
            onto_stream(
                *(program, begun, gated + nil, down_weight, next_norm),
                *made,
                *(INNER, HIDDEN, DOWN_CUT, ROWS, PROGRAMS),
            )
            if WHOLE:
                if arrive(barrier) == arrived + PROGRAMS - 1 and layer + 1 == end:
                    # nobody waits any more: ready for the next launch
                    tl.store(barrier, 0)
                arrived += PROGRAMS
