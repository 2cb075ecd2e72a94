"""Bias, head norm, RoPE and the KV write in one launch, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import check_dtype, dependent, release_next, wait_for_previous


@dataclass(frozen=True)
class RopeLaunch:
    """How the rows of one head are shared out.

    Attributes
    ----------
    rows : int
        Rows of a program, a power of two.
    num_warps : int
    pdl : bool
        Programmatic dependent launch.
    """

    rows: int
    num_warps: int
    pdl: bool = True


# most rows of a call: launch; decode and verification want many programs, prefill wide ones
TABLE = {64: RopeLaunch(1, 1), 1024: RopeLaunch(4, 2)}
PREFILL = RopeLaunch(16, 4)


def rope_write_kv(
    qkv: Tensor,
    bias: Tensor | None,
    qk_norm: Tensor | None,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    launch: RopeLaunch | None = None,
) -> Tensor:
    """As `reference.rope_write_kv`; rows of `qkv` and all axes of the caches may be strided."""
    rows, width = qkv.shape
    page_size, kv_heads, dim = k_cache.shape[1:]
    heads = width // dim - 2 * kv_heads
    check_dtype(qkv)
    if qkv.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")
    q = torch.empty((rows, heads, dim), dtype=qkv.dtype, device=qkv.device)
    if launch is None:
        launch = next((TABLE[most] for most in TABLE if rows <= most), PREFILL)
    if rows:
        _rope_write_kv[(triton.cdiv(rows, launch.rows), heads + 2 * kv_heads)](
            qkv,
            qkv.stride(0),
            bias,
            qk_norm,
            cos,
            signed_sin,
            positions,
            slots,
            q,
            k_cache,
            v_cache,
            *k_cache.stride(),
            *v_cache.stride(),
            rows,
            eps,
            H=heads,
            HKV=kv_heads,
            D=dim,
            PAGE_SIZE=page_size,
            ROWS=launch.rows,
            BLOCK_D=triton.next_power_of_2(dim),
            num_warps=launch.num_warps,
            **dependent(launch.pdl, qkv.device),
        )
    return q


@triton.jit
def _rope_write_kv(
    qkv,
    qkv_stride,
    bias,
    qk_norm,
    cos,
    signed_sin,
    positions,
    slots,
    q,
    k_cache,
    v_cache,
    k_page,
    k_token,
    k_head,
    k_dim,
    v_page,
    v_token,
    v_head,
    v_dim,
    n,
    eps,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    pair = tl.where(d < D // 2, d + D // 2, d - D // 2)
    inside = (row < n)[:, None] & (d < D)[None, :]
    release_next(PDL)
    wait_for_previous(PDL)
    start = qkv + row[:, None] * qkv_stride + head * D
    value = tl.load(start + d[None, :], mask=inside, other=0)
    partner = tl.load(start + pair[None, :], mask=inside, other=0)
    if bias is not None:
        value = _add_rounded(value, bias + head * D + d, d < D)
        partner = _add_rounded(partner, bias + head * D + pair, d < D)
    finish_head(
        value,
        partner,
        head,
        row,
        d,
        pair,
        inside,
        qk_norm,
        cos,
        signed_sin,
        positions,
        slots,
        q,
        k_cache,
        v_cache,
        k_page,
        k_token,
        k_head,
        k_dim,
        v_page,
        v_token,
        v_head,
        v_dim,
        n,
        eps,
        H,
        HKV,
        D,
        PAGE_SIZE,
    )


@triton.jit
def _add_rounded(value, pointers, inside):
    addend = tl.load(pointers, mask=inside, other=0).to(tl.float32)
    return (value.to(tl.float32) + addend[None, :]).to(value.dtype)


@triton.jit
def finish_head(
    value,
    partner,
    head,
    row,
    d,
    pair,
    inside,
    qk_norm,
    cos,
    signed_sin,
    positions,
    slots,
    q,
    k_cache,
    v_cache,
    k_page,
    k_token,
    k_head,
    k_dim,
    v_page,
    v_token,
    v_head,
    v_dim,
    n,
    eps,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Norm, rotate and store one head of some rows.

    `value` and `partner` are `[rows, BLOCK_D]` in the model's dtype: elements d, and the ones that
    they are rotated with, (d + D/2) mod D.
    """
    if head < H + HKV:
        if qk_norm is not None:
            # each step rounded to the model's dtype, as the model does it
            f = tl.where(inside, value.to(tl.float32), 0.0)
            scale = tl.rsqrt(tl.sum(f * f, 1) / D + eps)[:, None]
            weight = qk_norm + head * D
            value = _scaled(value, scale, weight + d, d < D)
            partner = _scaled(partner, scale, weight + pair, d < D)
        position = tl.load(positions + row, mask=row < n, other=0).to(tl.int64)
        at = position[:, None] * D + d[None, :]
        c = tl.load(cos + at, mask=inside, other=0)
        s = tl.load(signed_sin + at, mask=inside, other=0)
        value = (value.to(tl.float32) * c + partner.to(tl.float32) * s).to(value.dtype)
    if head < H:
        tl.store(q + (row[:, None] * H + head) * D + d[None, :], value, mask=inside)
    else:
        slot = tl.load(slots + row, mask=row < n, other=-1).to(tl.int64)
        kept = inside & (slot >= 0)[:, None]
        page, token = (slot // PAGE_SIZE)[:, None], (slot % PAGE_SIZE)[:, None]
        if head < H + HKV:
            start = k_cache + page * k_page + token * k_token + (head - H).to(tl.int64) * k_head
            tl.store(start + d[None, :] * k_dim, value, mask=kept)
        else:
            kv_head = (head - H - HKV).to(tl.int64)
            start = v_cache + page * v_page + token * v_token + kv_head * v_head
            tl.store(start + d[None, :] * v_dim, value, mask=kept)


@triton.jit
def _scaled(value, scale, pointers, inside):
    weight = tl.load(pointers, mask=inside, other=0).to(tl.float32)
    normed = (value.to(tl.float32) * scale).to(value.dtype)
    return (normed.to(tl.float32) * weight[None, :]).to(value.dtype)
