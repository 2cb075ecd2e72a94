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
    LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
    lines = tl.arange(0, (BLOCK_K + LINE - 1) // LINE) * LINE
    start = weight + tl.minimum(column, N - 1).to(tl.int64)[:, None] * stride
    for block in range(EACH):
        k = (split * EACH + block) * BLOCK_K + lines
        prefetch(start + tl.minimum(k, K - 1)[None, :])


@triton.jit
def project(
    x,
    x_stride,
    weight,
    weight_stride,
    norm,
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
    """Sums `[rows, columns]` over a program's share of K, and the sums of squares of x's rows.

    The norm's weight is multiplied in here and its root in `normalise`, once all squares are known:
    a root taken first would cost a pass over x before the first product.
    """
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    squares = tl.zeros((row.shape[0],), tl.float32)
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
        if norm is not None:
            f = a.to(tl.float32)
            squares += tl.sum(f * f, 1)
            factor = tl.load(norm + k, mask=k < K, other=0).to(tl.float32)
            a = (f * factor[None, :]).to(x.dtype.element_ty)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    return total, squares


@triton.jit
def store_part(partial, total, squares, norm, tile, split, tiles, SPLITS: tl.constexpr):
    """Leave a program's sums where the last one of its tile finds them."""
    ROWS: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    place = split * tiles + tile
    at = partial + place * (ROWS * BLOCK_N) + row[:, None] * BLOCK_N + column[None, :]
    # past L1, which is another one for each reader
    tl.store(at, total, cache_modifier=".cg")
    if norm is not None:
        behind = partial + SPLITS * tiles * (ROWS * BLOCK_N)
        tl.store(behind + place * ROWS + row, squares, cache_modifier=".cg")


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
def sum_squares(
    partial,
    norm,
    row,
    tile,
    tiles,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The squares of x's rows, likewise; zeros where no norm asks for them."""
    squares = tl.zeros((row.shape[0],), tl.float32)
    if norm is not None:
        behind = partial + SPLITS * tiles * (ROWS * BLOCK_N)
        for split in tl.static_range(SPLITS):
            place = split * tiles + tile
            squares += tl.load(behind + place * ROWS + row, cache_modifier=".cg")
    return squares


@triton.jit
def normalise(total, squares, norm, eps, K: tl.constexpr):
    """The projection of the normed rows, from that of the weighted ones."""
    if norm is not None:
        total *= tl.rsqrt(squares / K + eps)[:, None]
    return total


@triton.jit
def finish(
    total,
    squares,
    norm,
    bias,
    out,
    out_stride,
    row,
    column,
    n,
    eps,
    K: tl.constexpr,
    N: tl.constexpr,
    ADD: tl.constexpr,
):
    """Root of the norm, bias, residual, and the store of a tile."""
    total = normalise(total, squares, norm, eps, K)
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0).to(tl.float32)[None, :]
    at = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    inside = (row < n)[:, None] & (column < N)[None, :]
    result = total.to(out.dtype.element_ty)
    if ADD:
        # rounded before the addition too, as a projection and an addition of their own would be
        before = tl.load(at, mask=inside, other=0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(at, result, mask=inside)
