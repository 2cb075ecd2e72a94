"""What the kernels of few rows share on the device: the streamed product, and sums that meet."""

import triton
import triton.language as tl

from specbench.kernels.launch import prefetch


@triton.jit
def prefetch_weight(
    weight,
    stride,
    column,
    split,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
):
    """Fetch a program's share of the weight into L2: it depends on no kernel before this one."""
    SIZE: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
    first = split * EACH * BLOCK_K
    # whole sixteens of bytes: what little may be left out comes with the loads
    elements = tl.minimum(EACH * BLOCK_K, K - first) // (16 // SIZE) * (16 // SIZE)
    if (elements > 0) & (stride * SIZE % 16 == 0):
        start = weight + tl.minimum(column, N - 1).to(tl.int64) * stride + first
        prefetch(start, tl.zeros_like(column) + elements * SIZE)


@triton.jit
def project(
    x,
    x_stride,
    weight,
    weight_stride,
    row,
    column,
    split,
    n,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums `[rows, columns]` over a program's share of K: nothing but loads and products."""
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    x_row = x + row.to(tl.int64)[:, None] * x_stride
    w_row = weight + column.to(tl.int64)[:, None] * weight_stride
    row_in, column_in = (row < n)[:, None], (column < N)[:, None]
    for block in tl.range(EACH, num_stages=STAGES):
        k = (split * EACH + block) * BLOCK_K + tl.arange(0, BLOCK_K)
        if K % (BLOCK_K * EACH) == 0:
            a = tl.load(x_row + k[None, :], mask=row_in, other=0)
            b = tl.load(w_row + k[None, :], mask=column_in, other=0)
        else:
            k_in = (k < K)[None, :]
            a = tl.load(x_row + k[None, :], mask=row_in & k_in, other=0)
            b = tl.load(w_row + k[None, :], mask=column_in & k_in, other=0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    return total


@triton.jit
def store_part(partial, total, tile, split, tiles):
    """Leave a program's sums where the last one of its tile finds them."""
    ROWS: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    place = split * tiles + tile
    at = partial + place * (ROWS * BLOCK_N) + row[:, None] * BLOCK_N + column[None, :]
    # past L1, which is another one for each reader
    tl.store(at, total, cache_modifier=".cg")


@triton.jit
def sum_parts(
    partial,
    row,
    column,
    tile,
    tiles,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The sums of all programs of a tile, in the order of their shares, whoever came last."""
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for split in tl.static_range(SPLITS):
        place = split * tiles + tile
        at = partial + place * (ROWS * BLOCK_N) + row[:, None] * BLOCK_N + column[None, :]
        total += tl.load(at, cache_modifier=".cg")
    return total


@triton.jit
def root(squares, squares_stride, row, n, eps, K: tl.constexpr, PARTS: tl.constexpr):
    """What products with prenormed rows are multiplied by, `[rows]`; 1 for rows as they are."""
    if squares is None:
        return tl.full((row.shape[0],), 1.0, tl.float32)
    else:
        part = tl.arange(0, triton.next_power_of_2(PARTS))
        at = squares + part[:, None] * squares_stride + row[None, :]
        there = (part < PARTS)[:, None] & (row < n)[None, :]
        return tl.rsqrt(tl.sum(tl.load(at, mask=there, other=0), 0) / K + eps)


@triton.jit
def finish(
    total,
    bias,
    out,
    out_stride,
    next_norm,
    next_rows,
    next_squares,
    next_stride,
    row,
    column,
    tile,
    n,
    N: tl.constexpr,
    ADD: tl.constexpr,
):
    """Bias, residual, the store of a tile, and what the norm behind it needs."""
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None] * out_stride + column[None, :]
    inside = (row < n)[:, None] & (column < N)[None, :]
    result = total.to(out.dtype.element_ty)
    if ADD:
        # rounded before the addition too, as a projection and an addition of their own would be
        before = tl.load(out + at, mask=inside, other=0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + at, result, mask=inside)
    if next_norm is not None:
        # the norm sees the stream as it is stored
        value = tl.where(inside, result.to(tl.float32), 0)
        scale = tl.load(next_norm + column, mask=column < N, other=0).to(tl.float32)
        scaled = (value * scale[None, :]).to(next_rows.dtype.element_ty)
        at = row.to(tl.int64)[:, None] * N + column[None, :]
        tl.store(next_rows + at, scaled, mask=inside)
        tl.store(next_squares + tile * next_stride + row, tl.sum(value * value, 1), mask=row < n)
