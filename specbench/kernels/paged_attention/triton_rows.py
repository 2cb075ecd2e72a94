"""Query rows of a KV head, packed as ``row * G + head`` for its G query heads: loads and stores."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)

# what a pass collects
NOTHING = tl.constexpr(0)
EXACT = tl.constexpr(1)  # what weights are made of once their normaliser is known
LOGIT = tl.constexpr(2)  # products with the sum of the collected queries
NORMED = tl.constexpr(3)  # weights under a normaliser that is known beforehand

# which rows of a chunk it collects
FIRST_LAST = tl.constexpr(0)
LAST = tl.constexpr(1)
ALL = tl.constexpr(2)


@triton.jit
def collected_first(packed, rows, GROUP: tl.constexpr, WHICH: tl.constexpr, FRONT: tl.constexpr):
    """Packed rows in the order of a tile: where FRONT, the last row stands with the first one."""
    if FRONT == 0 or WHICH == ALL:
        return packed
    else:
        AT: tl.constexpr = 1 if WHICH == FIRST_LAST else 0
        row = packed // GROUP
        moved = tl.where(row == AT, rows - 1, row - 1)
        return tl.where((row >= AT) & (row < rows), moved, row) * GROUP + packed % GROUP


@triton.jit
def load_rows(q_ptr, packed, live, h, q_stride, d, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr):
    """Queries `[len(packed), D]` of KV head `h`; zeros where not `live`."""
    at = (packed // GROUP) * q_stride[1] + (h * GROUP + packed % GROUP) * q_stride[2]
    return tl.load(
        q_ptr + at[:, None] + d[None, :] * q_stride[3],
        mask=live[:, None] & (d < HEAD_DIM)[None, :],
        other=0.0,
    )


@triton.jit
def collected_row(c, rows, WHICH: tl.constexpr):
    """The chunk's row that is collected row `c`, and whether there is one."""
    if WHICH == FIRST_LAST:
        return tl.where(c == 0, 0, rows - 1), (c == 0) | (rows > 1)
    elif WHICH == LAST:
        return tl.where(c == 0, rows - 1, 0), c == 0
    else:
        return c, c < rows


@triton.jit
def collected_index(row, rows, WHICH: tl.constexpr):
    """Which collected row the chunk's `row` is; -1 for none."""
    if WHICH == FIRST_LAST:
        c = tl.where(row == 0, 0, tl.where(row == rows - 1, 1, -1))
    elif WHICH == LAST:
        c = tl.where(row == rows - 1, 0, -1)
    else:
        c = row
    return tl.where(row < rows, c, -1)


@triton.jit
def summed_query(
    q_ptr,
    rows,
    h,
    q_stride,
    d,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    WHICH: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The sum of the collected queries, as `[BLOCK_C, D]` whose rows add up to it.

    A 16-bit type holds it in three parts, so that its product with a key has fp32's digits.
    """
    part = tl.arange(0, BLOCK_C)
    total = tl.zeros([d.shape[0]], tl.float32)
    for first in tl.range(0, SLOTS, BLOCK_C, num_stages=1):
        slot = first + part
        row, counts = collected_row(slot // GROUP, rows, WHICH)
        packed = row * GROUP + slot % GROUP
        each = load_rows(q_ptr, packed, counts & (slot < SLOTS), h, q_stride, d, HEAD_DIM, GROUP)
        total += tl.sum(each.to(tl.float32), 0)
    KIND: tl.constexpr = q_ptr.dtype.element_ty
    high = total.to(KIND)
    rest = total - high.to(tl.float32)
    middle = rest.to(KIND)
    low = (rest - middle.to(tl.float32)).to(KIND)
    part = part[:, None]
    none = tl.zeros([BLOCK_C, d.shape[0]], KIND)
    parts = tl.where(part == 2, low[None, :], none)
    parts = tl.where(part == 1, middle[None, :], parts)
    return tl.where(part == 0, high[None, :], parts)


@triton.jit
def write_rows(
    value,
    lse2,
    r,
    h,
    packed,
    live,
    rows,
    out_ptr,
    lse_ptr,
    norm_ptr,
    out_stride,
    lse_stride,
    norm_stride,
    d,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    WHICH: tl.constexpr,
):
    """A request's finished rows: the output's and `lse`'s, padding included, and `norm`'s."""
    r = r.to(tl.int64)
    row = packed // GROUP
    head = h * GROUP + packed % GROUP
    real = row < rows
    at = r * out_stride[0] + row * out_stride[1] + head * out_stride[2]
    tl.store(
        out_ptr + at[:, None] + d[None, :] * out_stride[3],
        tl.where(real[:, None], value, 0.0).to(out_ptr.dtype.element_ty),
        mask=live[:, None] & (d < HEAD_DIM)[None, :],
    )
    lse = tl.where(real, lse2 * LN2, -float("inf"))
    if lse_ptr is not None:
        at = r * lse_stride[0] + row * lse_stride[1] + head * lse_stride[2]
        tl.store(lse_ptr + at, lse, mask=live)
    if norm_ptr is not None:
        at = r * norm_stride[0] + head * norm_stride[2]
        c = collected_index(row, rows, WHICH)
        tl.store(norm_ptr + at + c * norm_stride[1], lse, mask=live & (c >= 0))
        if WHICH == FIRST_LAST:
            # a single row is the first and the last
            tl.store(norm_ptr + at + norm_stride[1], lse, mask=live & (row == rows - 1))
