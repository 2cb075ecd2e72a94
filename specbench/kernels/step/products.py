"""The phases of a layer that are products, on the device functions of the kernels of few rows."""

import triton
import triton.language as tl

from specbench.kernels.launch import last_to_arrive, prefetch
from specbench.kernels.linear.device import (
    begin_weight,
    finish,
    load_residual,
    load_squares,
    prefetch_weight,
    project,
    root,
    store_part,
    sum_parts,
)
from specbench.kernels.mlp.triton import gated
from specbench.kernels.qkv.device import load_pair, load_rotation, rotate, store_head
from specbench.kernels.step.barrier import turns


@triton.jit
def embed_rows(
    program,
    tokens,
    table,
    table_stride,
    norm,
    stream,
    rows,
    squares,
    n,
    N: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The stream that tokens begin with, and the first norm begun on it."""
    BLOCK_N: tl.constexpr = T.block_n
    row = tl.arange(0, ROWS)
    token = tl.load(tokens + row, mask=row < n, other=0)
    for turn in tl.range(turns(program, T.tiles, PROGRAMS), num_stages=1, disable_licm=True):
        tile = program + turn * PROGRAMS
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (row < n)[:, None] & (column < N)[None, :]
        begun = tl.load(table + token[:, None] * table_stride + column[None, :], inside, 0)
        scale = tl.load(norm + column, mask=column < N, other=0)
        nothing = tl.zeros((ROWS, BLOCK_N), tl.float32)
        where = row, column, tile, n
        finish(nothing, None, begun, scale, stream, N, rows, squares, ROWS, *where, N)


@triton.jit
def _pair_columns(tile, D: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile's head, elements of its first half, and columns: matching halves side by side."""
    HALF: tl.constexpr = D // 2
    TILES: tl.constexpr = (HALF + BLOCK_N // 2 - 1) // (BLOCK_N // 2)
    head, first = tile // TILES, tile % TILES * (BLOCK_N // 2)
    column = tl.arange(0, BLOCK_N)
    low_column = first + column // 2
    column = tl.where(low_column < HALF, head * D + low_column + column % 2 * HALF, N)
    return head, first + tl.arange(0, BLOCK_N // 2), column


@triton.jit
def fetch_qkv(program, weight, M: tl.constexpr, T: tl.constexpr):
    """Fetch a program's columns into L2."""
    N: tl.constexpr = (M.heads + 2 * M.kv_heads) * M.dim
    if program < T.tiles:
        column = _pair_columns(program, M.dim, N, T.block_n)[2]
        prefetch_weight(weight, M.hidden, column, 0, M.hidden, N, T.block_k, T.each)


@triton.jit
def begin_qkv(
    tile,
    weight,
    bias,
    cos,
    signed_sin,
    position,
    n,
    M: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What `qkv` needs that no phase writes: the weight where it is held, bias, rotation."""
    D: tl.constexpr = M.dim
    K: tl.constexpr = M.hidden
    N: tl.constexpr = (M.heads + 2 * M.kv_heads) * D
    row = tl.arange(0, ROWS)
    head, low, column = _pair_columns(tile, D, N, T.block_n)
    held = begin_weight(weight, K, column, 0, K, N, T.block_k, T.each, T.sharers, T.held, False)
    low_in = (low < D // 2) & (tile < T.tiles)
    inside = (row < n)[:, None] & low_in[None, :]
    rotates = head < M.heads + M.kv_heads
    high = low + D // 2
    low_bias, high_bias = low, low
    if bias is not None:
        low_bias, high_bias = load_pair(bias, head, low, high, low_in, D)
    low_cos, low_sin = load_rotation(cos, signed_sin, position, low, inside, rotates, D)
    high_cos, high_sin = load_rotation(cos, signed_sin, position, high, inside, rotates, D)
    return held, low_bias, high_bias, low_cos, low_sin, high_cos, high_sin


@triton.jit
def qkv(
    program,
    begun,
    rows,
    squares,
    weight,
    bias,
    cos,
    signed_sin,
    position,
    slot,
    q,
    k_cache,
    v_cache,
    kv_stride,
    n,
    eps,
    M: tl.constexpr,
    T: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The norm's end, projection, rotation, and the stores of q, k and v."""
    D: tl.constexpr = M.dim
    K: tl.constexpr = M.hidden
    N: tl.constexpr = (M.heads + 2 * M.kv_heads) * D
    row = tl.arange(0, ROWS)
    for turn in tl.range(turns(program, T.tiles, PROGRAMS), num_stages=1, disable_licm=True):
        tile = program + turn * PROGRAMS
        # in the loop, so that x does not wait for it
        loaded = load_squares(squares, ROWS, row, n, PARTS)
        head, low, column = _pair_columns(tile, D, N, T.block_n)
        if not T.held:
            begun = begin_qkv(tile, weight, bias, cos, signed_sin, position, n, M, T, ROWS)
        held, low_bias, high_bias, low_cos, low_sin, high_cos, high_sin = begun
        cut = row, column, 0, n
        total = project(
            *(rows, K, weight, K, held),
            *cut,
            *(K, N, T.block_k, T.each, T.stages, T.sharers, T.held),
        )
        total *= root(loaded, eps, K)[:, None]
        low_sum, high_sum = tl.split(tl.reshape(total, (ROWS, T.block_n // 2, 2)))
        if bias is not None:
            low_sum += low_bias.to(tl.float32)[None, :]
            high_sum += high_bias.to(tl.float32)[None, :]
        first, second = low_sum.to(q.dtype.element_ty), high_sum.to(q.dtype.element_ty)
        if head < M.heads + M.kv_heads:
            turned = rotate(first, second, low_cos, low_sin)
            second = rotate(second, first, high_cos, high_sin)
            first = turned
        inside = (row < n)[:, None] & (low < D // 2)[None, :]
        place = slot, inside, q, k_cache, v_cache, kv_stride, kv_stride
        store_head(first, head, row, low, *place, M.heads, M.kv_heads, D, PAGE)
        store_head(second, head, row, low + D // 2, *place, M.heads, M.kv_heads, D, PAGE)


@triton.jit
def fetch_onto(program, weight, K: tl.constexpr, N: tl.constexpr, T: tl.constexpr):
    """Fetch a program's share of a weight into L2."""
    if program < T.tiles * T.splits:
        column = program % T.tiles * T.block_n + tl.arange(0, T.block_n)
        prefetch_weight(weight, K, column, program // T.tiles, K, N, T.block_k, T.each)


@triton.jit
def begin_onto(
    unit,
    weight,
    norm,
    stream,
    n,
    K: tl.constexpr,
    N: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What `onto_stream` needs that the phase before does not write."""
    tile, split = unit % T.tiles, unit // T.tiles
    row, column = tl.arange(0, ROWS), tile * T.block_n + tl.arange(0, T.block_n)
    if T.held:
        # a program without a tile reads nothing
        column = tl.where(unit < T.tiles * T.splits, column, N)
    held = begin_weight(weight, K, column, split, K, N, T.block_k, T.each, T.sharers, T.held, False)
    scale = tl.load(norm + column, mask=column < N, other=0)
    return held, scale, load_residual(stream, N, row, column, n, N)


@triton.jit
def onto_stream(
    program,
    begun,
    x,
    weight,
    norm,
    stream,
    next_rows,
    next_squares,
    partial,
    counters,
    n,
    K: tl.constexpr,
    N: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """A projection added to the stream, and the norm behind it begun."""
    BLOCK_N: tl.constexpr = T.block_n
    SPLITS: tl.constexpr = T.splits
    row, local = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    for turn in tl.range(
        turns(program, T.tiles * T.splits, PROGRAMS), num_stages=1, disable_licm=True
    ):
        unit = program + turn * PROGRAMS
        tile, split = unit % T.tiles, unit // T.tiles
        column = tile * BLOCK_N + local
        if not T.held:
            begun = begin_onto(unit, weight, norm, stream, n, K, N, T, ROWS)
        held, scale, before = begun
        total = project(
            *(x, K, weight, K, held, row, column, split, n),
            *(K, N, T.block_k, T.each, T.stages, T.sharers, T.held),
        )
        last = SPLITS == 1
        if SPLITS > 1:
            store_part(partial, total, tile, split, T.tiles)
            last = last_to_arrive(counters + tile, SPLITS)
            if last:
                total = sum_parts(partial, row, local, tile, T.tiles, ROWS, BLOCK_N, SPLITS)
        if last:
            where = row, column, tile, n
            made = stream, N, next_rows, next_squares, ROWS
            finish(total, None, before, scale, *made, *where, N)


@triton.jit
def _own_pairs(program, N: tl.constexpr, PROGRAMS: tl.constexpr):
    """A program's gates: within one of equally many, so that none streams more than the others."""
    return program * N // PROGRAMS, (program + 1) * N // PROGRAMS


@triton.jit
def _gate_columns(first, last, N: tl.constexpr, BLOCK_N: tl.constexpr):
    """Gate and up side by side, so that both sums of a pair are one thread's."""
    pair = tl.arange(0, 2 * BLOCK_N)
    column = first + pair // 2
    return tl.where(column < last, column + pair % 2 * N, 2 * N)


@triton.jit
def fetch_gate_up(program, weight, M: tl.constexpr, PROGRAMS: tl.constexpr):
    """Fetch a program's share of the weight into L2: two runs of rows, each in equal parts."""
    PARTS: tl.constexpr = 32
    UNIT: tl.constexpr = 128 // weight.dtype.element_ty.primitive_bitwidth
    begin, end = _own_pairs(program, M.inner, PROGRAMS)
    elements = (end - begin) * M.hidden
    if elements > 0:
        each = tl.cdiv(elements // UNIT, PARTS) * UNIT
        part = tl.arange(0, 2 * PARTS)
        # the last part overlaps with the one before
        first = tl.minimum(part // 2 * each, elements - each)
        row = begin.to(tl.int64) + part % 2 * M.inner
        size = tl.full([2 * PARTS], 16, tl.int32) * (each // UNIT)
        prefetch(weight + row * M.hidden + first, size)


@triton.jit
def gate_up(
    program,
    rows,
    squares,
    weight,
    out,
    n,
    eps,
    M: tl.constexpr,
    T: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The norm's end, projection, SiLU times up."""
    N: tl.constexpr = M.inner
    K: tl.constexpr = M.hidden
    row = tl.arange(0, ROWS)
    begin, end = _own_pairs(program, N, PROGRAMS)
    for first in tl.range(begin, end, T.block_n, num_stages=1, disable_licm=True):
        loaded = load_squares(squares, ROWS, row, n, PARTS)
        column = _gate_columns(first, end, N, T.block_n)
        total = project(
            *(rows, K, weight, K, weight, row, column, 0, n),
            *(K, 2 * N, T.block_k, T.each, T.stages, T.sharers, False),
        )
        total *= root(loaded, eps, K)[:, None]
        gate, up = tl.split(tl.reshape(total, (ROWS, T.block_n, 2)))
        result = gated(gate.to(out.dtype.element_ty), up.to(out.dtype.element_ty))
        own = first + tl.arange(0, T.block_n)
        inside = (row < n)[:, None] & (own < end)[None, :]
        tl.store(out + row.to(tl.int64)[:, None] * N + own[None, :], result, mask=inside)
