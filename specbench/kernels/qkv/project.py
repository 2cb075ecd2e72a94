"""Projection, RoPE and the KV write of a few rows in one launch, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    Scratch,
    dependent,
    fetch_ahead,
    fetchable,
    last_to_arrive,
    multiprocessors,
    release_next,
    row_tile,
    to_fetch,
    wait_for_previous,
)
from specbench.kernels.linear.device import (
    prefetch_weight,
    project,
    root,
    store_part,
    sum_parts,
)
from specbench.kernels.linear.plan import LinearLaunch, fitting, scratch_size, shares
from specbench.kernels.linear.triton import operands
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.qkv.triton import finish_head

# row tile: (block_k of heads of 64, num_warps, num_stages); a tile is one head wide
TABLE = {16: (256, 2, 3), 32: (256, 4, 3), 64: (256, 4, 3)}


def choose(rows: int, heads: int, dim: int, hidden: int, multiprocessors: int) -> LinearLaunch:
    """A program a multiprocessor, each with a share of one head's K."""
    block_k, warps, stages = TABLE[row_tile(rows)]
    width = triton.next_power_of_2(dim)
    if width > 64:
        block_k, warps = max(16, 64 * block_k // width), 4
    splits = max(1, min(multiprocessors // heads, triton.cdiv(hidden, block_k)))
    if row_tile(rows) == 64:
        # wide rows of x weigh on every split
        splits = max(1, splits // 2)
    return LinearLaunch(width, block_k, splits, warps, stages)


def project_rope_write_kv(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None,
    qk_norm: Tensor | None,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    launch: LinearLaunch | None = None,
    scratch: Scratch | None = None,
    ahead: Tensor | None = None,
) -> Tensor:
    """As `reference.project_rope_write_kv`, for at most 64 rows.

    Parameters
    ----------
    launch : LinearLaunch, optional
        Instead of the table's; `block_n` is the head's width rounded up to a power of two.
    scratch : Scratch, optional
        Reused; without it the call allocates and clears its own.
    ahead : Tensor, optional
        A weight that is read soon; see `to_fetch`.

    Returns
    -------
    Tensor
        `[n, H, D]`, the rotated queries.
    """
    a, squares = operands(x, weight)
    rows, hidden = a.shape
    page_size, kv_heads, dim = k_cache.shape[1:]
    all_heads = len(weight) // dim
    heads = all_heads - 2 * kv_heads
    if launch is None:
        launch = choose(rows, all_heads, dim, hidden, multiprocessors(a.device))
        launch = fitting(launch, rows, a.element_size())
    if launch.block_n != triton.next_power_of_2(dim):
        raise ValueError(f"a tile is one head of {dim}, not {launch.block_n} columns")
    each, splits = shares(hidden, launch)
    floats, tiles = scratch_size(rows, all_heads * launch.block_n, hidden, launch, alone=True)
    if scratch is None:
        scratch = Scratch.make(a.device, floats, tiles)
    scratch.check(floats, tiles)
    q = torch.empty((rows, heads, dim), dtype=a.dtype, device=a.device)
    following, parts = to_fetch(ahead, a.device)
    _project_rope_write_kv[(all_heads, splits)](
        a,
        a.stride(0),
        squares,
        0 if squares is None else squares.stride(0),
        weight,
        weight.stride(0),
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
        scratch.partial,
        scratch.counters,
        following,
        rows,
        eps,
        K=hidden,
        SQUARES=1 if squares is None else len(squares),
        H=heads,
        HKV=kv_heads,
        D=dim,
        PAGE_SIZE=page_size,
        ROWS=row_tile(rows),
        BLOCK_D=launch.block_n,
        BLOCK_K=launch.block_k,
        EACH=each,
        SPLITS=splits,
        STAGES=launch.num_stages,
        PARTS=parts,
        PREFETCH=launch.prefetch and fetchable(weight),
        num_warps=launch.num_warps,
        **dependent(launch.pdl, a.device),
    )
    return q


@triton.jit
def _project_rope_write_kv(
    x,
    x_stride,
    squares,
    squares_stride,
    weight,
    weight_stride,
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
    partial,
    counters,
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
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    HEADS: tl.constexpr = H + 2 * HKV
    N: tl.constexpr = HEADS * D
    head, split = tl.program_id(0), tl.program_id(1)
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    column = head * D + d
    if PDL and PREFETCH:
        prefetch_weight(weight, weight_stride, column, split, K, N, BLOCK_K, EACH)
    wait_for_previous(PDL)
    total = project(
        x, x_stride, weight, weight_stride, row, column, split, n, K, N, BLOCK_K, EACH, STAGES
    )
    fetch_ahead(
        following,
        tl.program_id(1) * tl.num_programs(0) + tl.program_id(0),
        tl.num_programs(0) * tl.num_programs(1),
        PARTS,
    )
    release_next(PDL)
    # through scratch even without splits: the rotation needs elements of other threads
    store_part(partial, total, head, split, HEADS)
    if last_to_arrive(counters + head, SPLITS):
        pair = tl.where(d < D // 2, d + D // 2, d - D // 2)
        divided = root(squares, squares_stride, row, n, eps, K, SQUARES)[:, None]
        value = sum_parts(partial, row, d, head, HEADS, ROWS, BLOCK_D, SPLITS) * divided
        partner = sum_parts(partial, row, pair, head, HEADS, ROWS, BLOCK_D, SPLITS) * divided
        if bias is not None:
            start = bias + head * D
            value += tl.load(start + d, mask=d < D, other=0).to(tl.float32)[None, :]
            partner += tl.load(start + pair, mask=d < D, other=0).to(tl.float32)[None, :]
        finish_head(
            value.to(x.dtype.element_ty),
            partner.to(x.dtype.element_ty),
            head,
            row.to(tl.int64),
            d,
            pair,
            (row < n)[:, None] & (d < D)[None, :],
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
