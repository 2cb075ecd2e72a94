"""Bias, head norm, RoPE and the KV write in one launch, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import check_dtype, dependent, release_next, wait_for_previous
from specbench.kernels.qkv.device import (
    load_pair,
    load_places,
    load_rotation,
    norm_head,
    rotate,
    store_head,
)


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
            k_cache.stride(),
            v_cache.stride(),
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
    k_stride,
    v_stride,
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
    rotates = head < H + HKV
    release_next(PDL)
    # weights depend on no kernel: their loads may overlap the end of the one before
    if bias is not None:
        addend, partner_addend = load_pair(bias, head, d, pair, d < D, D)
    if qk_norm is not None:
        scale, partner_scale = load_pair(qk_norm, head, d, pair, (d < D) & rotates, D)
    wait_for_previous(PDL)
    position, slot = load_places(positions, slots, row, n)
    start = qkv + row[:, None] * qkv_stride + head * D
    value = tl.load(start + d[None, :], mask=inside, other=0)
    partner = tl.load(start + pair[None, :], mask=inside, other=0)
    c, s = load_rotation(cos, signed_sin, position, d, inside, rotates, D)
    if bias is not None:
        value = _add_rounded(value, addend)
        partner = _add_rounded(partner, partner_addend)
    if rotates:
        if qk_norm is not None:
            value, partner = norm_head(value, partner, inside, scale, partner_scale, eps, D)
        value = rotate(value, partner, c, s)
    store_head(
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
        H,
        HKV,
        D,
        PAGE_SIZE,
    )


@triton.jit
def _add_rounded(value, addend):
    return (value.to(tl.float32) + addend.to(tl.float32)[None, :]).to(value.dtype)
