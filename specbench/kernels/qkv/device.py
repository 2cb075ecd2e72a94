"""Triton functions of a head's end: norm, rotation, and the stores of q, k and v."""

import triton
import triton.language as tl


@triton.jit
def load_places(positions, slots, row, n):
    """Position and slot of each row, 0 and -1 past the last."""
    # past the first-level cache: before the wait, what it holds may be old
    position = tl.load(positions + row, mask=row < n, other=0, cache_modifier=".cg")
    slot = tl.load(slots + row, mask=row < n, other=-1, cache_modifier=".cg")
    return position.to(tl.int64), slot.to(tl.int64)


@triton.jit
def load_pair(vector, head, d, pair, inside, D: tl.constexpr):
    """Elements `d` of a head's part of a vector, and those they are rotated with."""
    start = vector + head * D
    return tl.load(start + d, mask=inside, other=0), tl.load(start + pair, mask=inside, other=0)


@triton.jit
def load_rotation(cos, signed_sin, position, d, inside, rotates, D: tl.constexpr):
    """Rows of the tables at elements `d` of a head, `[rows, d]`; nothing for heads of v."""
    at = position[:, None] * D + d[None, :]
    c = tl.load(cos + at, mask=inside & rotates, other=0)
    s = tl.load(signed_sin + at, mask=inside & rotates, other=0)
    return c, s


@triton.jit
def rotate(value, partner, c, s):
    """Elements of a head, turned with the ones half a head away, in the model's dtype."""
    return (value.to(tl.float32) * c + partner.to(tl.float32) * s).to(value.dtype)


@triton.jit
def norm_head(value, partner, inside, weight, partner_weight, eps, D: tl.constexpr):
    """RMS norm of a whole head and of the elements it is rotated with."""
    # each step rounded to the model's dtype, as the model does it
    f = tl.where(inside, value.to(tl.float32), 0.0)
    scale = tl.rsqrt(tl.sum(f * f, 1) / D + eps)[:, None]
    return _scaled(value, scale, weight), _scaled(partner, scale, partner_weight)


@triton.jit
def _scaled(value, scale, weight):
    normed = (value.to(tl.float32) * scale).to(value.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)[None, :]).to(value.dtype)


@triton.jit
def store_head(
    value,
    head,
    row,
    d,
    slot,
    inside,
    q,
    k_cache,
    v_cache,
    k_stride,
    v_stride,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Elements `d` of one head of some rows, to the result or to the slots of a cache."""
    if head < H:
        at = (row.to(tl.int64)[:, None] * H + head) * D + d[None, :]
        tl.store(q + at, value, mask=inside)
    else:
        kept = inside & (slot >= 0)[:, None]
        page, token = (slot // PAGE_SIZE)[:, None], (slot % PAGE_SIZE)[:, None]
        if head < H + HKV:
            start = k_cache + page * k_stride[0] + token * k_stride[1]
            start += (head - H).to(tl.int64) * k_stride[2]
            tl.store(start + d[None, :] * k_stride[3], value, mask=kept)
        else:
            start = v_cache + page * v_stride[0] + token * v_stride[1]
            start += (head - H - HKV).to(tl.int64) * v_stride[2]
            tl.store(start + d[None, :] * v_stride[3], value, mask=kept)
