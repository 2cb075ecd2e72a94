"""Projection, RoPE and the KV write of a few rows, tile by tile of matching halves of a head."""

import triton
import triton.language as tl

from specbench.kernels.launch import fetch_share, release_next, wait_for_previous
from specbench.kernels.linear.device import begin_weight, load_squares, project, root
from specbench.kernels.qkv.device import load_pair, load_places, load_rotation, rotate, store_head


@triton.jit
def project_pairs(
    x,
    x_stride,
    squares,
    squares_stride,
    weight,
    weight_stride,
    bias,
    cos,
    signed_sin,
    positions,
    slots,
    q,
    k_cache,
    v_cache,
    k_stride,
    v_stride,
    following,
    n,
    eps,
    K: tl.constexpr,
    SQUARES: tl.constexpr,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    STAGES: tl.constexpr,
    SHARERS: tl.constexpr,
    PARTS: tl.constexpr,
    PREFETCH: tl.constexpr,
    SETTLED: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program: columns of one head's first half, and those they are rotated with."""
    HALF: tl.constexpr = D // 2
    PAIRS: tl.constexpr = BLOCK_N // 2
    TILES: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    N: tl.constexpr = (H + 2 * HKV) * D
    head, first = tl.program_id(0) // TILES, tl.program_id(0) % TILES * PAIRS
    row, low = tl.arange(0, ROWS), first + tl.arange(0, PAIRS)
    high = low + HALF
    # side by side, so that both sums of a pair are one thread's
    column = tl.arange(0, BLOCK_N)
    low_column = first + column // 2
    column = tl.where(low_column < HALF, head * D + low_column + column % 2 * HALF, N)
    inside = (row < n)[:, None] & (low < HALF)[None, :]
    rotates = head < H + HKV
    # weights depend on no kernel before this one
    held = begin_weight(
        weight, weight_stride, column, 0, K, N, BLOCK_K, EACH, SHARERS, PREFETCH, PDL
    )
    if bias is not None:
        low_bias, high_bias = load_pair(bias, head, low, high, low < HALF, D)
    if SETTLED:
        position, slot = load_places(positions, slots, row, n)
        low_cos, low_sin = load_rotation(cos, signed_sin, position, low, inside, rotates, D)
        high_cos, high_sin = load_rotation(cos, signed_sin, position, high, inside, rotates, D)
    wait_for_previous(PDL)
    release_next(PDL and EARLY)
    if not SETTLED:
        position, slot = load_places(positions, slots, row, n)
    if squares is not None:
        loaded = load_squares(squares, squares_stride, row, n, SQUARES)
    total = project(
        x,
        x_stride,
        weight,
        weight_stride,
        held,
        row,
        column,
        0,
        n,
        K,
        N,
        BLOCK_K,
        EACH,
        STAGES,
        SHARERS,
        PREFETCH and EACH == 1,
    )
    if not SETTLED:
        low_cos, low_sin = load_rotation(cos, signed_sin, position, low, inside, rotates, D)
        high_cos, high_sin = load_rotation(cos, signed_sin, position, high, inside, rotates, D)
    fetch_share(following, PARTS)
    release_next(PDL and not EARLY)
    if squares is not None:
        total *= root(loaded, eps, K)[:, None]
    low_sum, high_sum = tl.split(tl.reshape(total, (ROWS, PAIRS, 2)))
    if bias is not None:
        low_sum += low_bias.to(tl.float32)[None, :]
        high_sum += high_bias.to(tl.float32)[None, :]
    low_value, high_value = low_sum.to(x.dtype.element_ty), high_sum.to(x.dtype.element_ty)
    if rotates:
        low_turned = rotate(low_value, high_value, low_cos, low_sin)
        high_value = rotate(high_value, low_value, high_cos, high_sin)
        low_value = low_turned
    store_head(
        low_value,
        head,
        row,
        low,
        slot,
        inside,
        q,
        k_cache,
        v_cache,
        k_stride,
        v_stride,
        H,
        HKV,
        D,
        PAGE_SIZE,
    )
    store_head(
        high_value,
        head,
        row,
        high,
        slot,
        inside,
        q,
        k_cache,
        v_cache,
        k_stride,
        v_stride,
        H,
        HKV,
        D,
        PAGE_SIZE,
    )
