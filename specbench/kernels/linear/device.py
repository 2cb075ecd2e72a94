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
    """Fetch a program's share of a `fetchable` weight into L2: it depends on no kernel before."""
    SIZE: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
    first = split * EACH * BLOCK_K
    # whole sixteens of bytes: what little may be left out comes with the loads
    elements = tl.minimum(EACH * BLOCK_K, K - first) // (16 // SIZE) * (16 // SIZE)
    if elements > 0:
        start = weight + tl.minimum(column, N - 1).to(tl.int64) * stride + first
        prefetch(start, tl.zeros_like(column) + elements * SIZE)


@triton.jit
def begin_weight(
    weight,
    stride,
    column,
    split,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    SHARERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """What `project` takes as `held`: the share itself, where it is one block of K.

    Called before the wait. A longer share is fetched into L2.
    """
    if PREFETCH and EACH == 1:
        k = split * BLOCK_K + _columns_of_k(BLOCK_K, SHARERS)
        return _load_weight(weight, stride, k, column, K, N, BLOCK_K, SHARERS)
    else:
        if PREFETCH and PDL:
            prefetch_weight(weight, stride, column, split, K, N, BLOCK_K, EACH)
        return weight


@triton.jit
def project(
    x,
    x_stride,
    weight,
    weight_stride,
    held,
    row,
    column,
    split,
    n,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    STAGES: tl.constexpr,
    SHARERS: tl.constexpr,
    HELD: tl.constexpr,
):
    """Sums `[rows, columns]` over a program's share of K: nothing but loads and products.

    Each of `SHARERS` warps takes a part of every block of K, and all rows and columns. A product's
    sum is a chain of instructions that wait for one another: theirs are so much shorter.
    """
    SHARE: tl.constexpr = BLOCK_K * EACH
    row_in = (row < n)[:, None]
    x_row = x + row.to(tl.int64)[:, None] * x_stride
    if SHARERS == 1:
        total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    else:
        row_in, x_row = row_in[None, :, :], x_row[None, :, :]
        total = tl.zeros((SHARERS, row.shape[0], column.shape[0]), tl.float32)
    own = _columns_of_k(BLOCK_K, SHARERS)
    if HELD:
        a = load_block(x_row, split * BLOCK_K + own, row_in, K, SHARE)
        total = _multiply(a, held, total, SHARERS)
    else:
        for block in tl.range(EACH, num_stages=STAGES):
            k = (split * EACH + block) * BLOCK_K + own
            a = load_block(x_row, k, row_in, K, SHARE)
            b = _load_weight(weight, weight_stride, k, column, K, N, SHARE, SHARERS)
            total = _multiply(a, b, total, SHARERS)
    if SHARERS == 1:
        return total
    else:
        return _sum_sharers(total)


@triton.jit
def _columns_of_k(BLOCK_K: tl.constexpr, SHARERS: tl.constexpr):
    """Columns of a block of K: `[1, columns]`, or `[sharers, 1, columns]` where warps share it."""
    if SHARERS == 1:
        return tl.arange(0, BLOCK_K)[None, :]
    else:
        PART: tl.constexpr = BLOCK_K // SHARERS
        sharer = tl.arange(0, SHARERS)[:, None, None]
        return sharer * PART + tl.arange(0, PART)[None, None, :]


@triton.jit
def _load_weight(
    weight,
    stride,
    k,
    column,
    K: tl.constexpr,
    N: tl.constexpr,
    SHARE: tl.constexpr,
    SHARERS: tl.constexpr,
):
    rows, column_in = weight + column.to(tl.int64)[:, None] * stride, (column < N)[:, None]
    if SHARERS == 1:
        return load_block(rows, k, column_in, K, SHARE)
    else:
        return load_block(rows[None, :, :], k, column_in[None, :, :], K, SHARE)


@triton.jit
def _multiply(a, b, total, SHARERS: tl.constexpr):
    if SHARERS == 1:
        return tl.dot(a, tl.trans(b), total, input_precision="ieee")
    else:
        return tl.dot(a, tl.permute(b, (0, 2, 1)), total, input_precision="ieee")


@triton.jit
def load_block(rows, k, row_in, K: tl.constexpr, SHARE: tl.constexpr):
    """Elements `k` of rows, of which programs take `SHARE` each; zeros outside."""
    if K % SHARE == 0:
        return tl.load(rows + k, mask=row_in, other=0)
    else:
        return tl.load(rows + k, mask=row_in & (k < K), other=0)


@triton.constexpr_function
def _log2(power: int) -> int:
    return power.bit_length() - 1


@triton.jit
def _sum_sharers(parts):
    """Sums of all warps, `[rows, columns]`, added in the threads that hold them afterwards."""
    SHARERS: tl.constexpr = parts.shape[0]
    ROWS: tl.constexpr = parts.shape[1]
    COLUMNS: tl.constexpr = parts.shape[2]
    parts = tl.permute(parts, (1, 2, 0))
    for halving in tl.static_range(_log2(SHARERS)):
        even, odd = tl.split(tl.reshape(parts, (ROWS, COLUMNS, SHARERS >> (halving + 1), 2)))
        parts = even + odd
    return tl.reshape(parts, (ROWS, COLUMNS))


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
def load_squares(squares, squares_stride, row, n, PARTS: tl.constexpr):
    """Sums of squares of prenormed rows, `[parts, rows]`, for `root`."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    at = squares + part[:, None] * squares_stride + row[None, :]
    return tl.load(at, mask=(part < PARTS)[:, None] & (row < n)[None, :], other=0)


@triton.jit
def root(loaded, eps, K: tl.constexpr):
    """What products with prenormed rows are multiplied by, `[rows]`, from `load_squares`."""
    return tl.rsqrt(tl.sum(loaded, 0) / K + eps)


@triton.jit
def load_residual(out, out_stride, row, column, n, N: tl.constexpr):
    """What a tile is added to."""
    at = row.to(tl.int64)[:, None] * out_stride + column[None, :]
    return tl.load(out + at, mask=(row < n)[:, None] & (column < N)[None, :], other=0)


@triton.jit
def finish(
    total,
    addend,
    before,
    scale,
    out,
    out_stride,
    next_rows,
    next_squares,
    next_stride,
    row,
    column,
    tile,
    n,
    N: tl.constexpr,
):
    """Bias, residual, the store of a tile, and what the norm behind it needs."""
    if addend is not None:
        total += addend.to(tl.float32)[None, :]
    inside = (row < n)[:, None] & (column < N)[None, :]
    result = total.to(out.dtype.element_ty)
    if before is not None:
        # rounded before the addition too, as a projection and an addition of their own would be
        result = (before.to(tl.float32) + result.to(tl.float32)).to(out.dtype.element_ty)
    at = row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(out + at, result, mask=inside)
    if scale is not None:
        # the norm sees the stream as it is stored
        value = tl.where(inside, result.to(tl.float32), 0)
        scaled = (value * scale.to(tl.float32)[None, :]).to(next_rows.dtype.element_ty)
        at = row.to(tl.int64)[:, None] * N + column[None, :]
        tl.store(next_rows + at, scaled, mask=inside)
        tl.store(next_squares + tile * next_stride + row, tl.sum(value * value, 1), mask=row < n)
