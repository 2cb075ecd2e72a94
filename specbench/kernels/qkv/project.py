"""Projection, RoPE and the KV write of a few rows in one launch, in Triton."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    Scratch,
    dependent,
    fetch_share,
    fetchable,
    last_to_arrive,
    multiprocessors,
    release_next,
    row_tile,
    to_fetch,
    wait_for_previous,
)
from specbench.kernels.linear.device import (
    begin_weight,
    load_squares,
    project,
    root,
    store_part,
    sum_parts,
)
from specbench.kernels.linear.plan import LinearLaunch, fitting, scratch_size, shares, whole
from specbench.kernels.linear.triton import operands
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.qkv.device import (
    load_pair,
    load_places,
    load_rotation,
    norm_head,
    rotate,
    store_head,
)
from specbench.kernels.qkv.pairs import project_pairs

# row tile: (block_k of heads of 64, num_warps, num_stages); a tile is one head wide
TABLE = {16: (256, 2, 3), 32: (256, 4, 3), 64: (256, 4, 3)}
# columns of a tile that holds matching halves of a head
PAIRS = 16
# of a wider K, a few programs' loads would be what is waited for
WIDEST = 2048
# wide rows of x are streamed, and where registers for all of K would make programs take turns:
# (block_k, num_warps, num_stages)
STREAMED = (256, 4, 4)


def choose(
    rows: int, heads: int, dim: int, hidden: int, multiprocessors: int, normed: bool = False
) -> LinearLaunch:
    """Tiles of halves for a short K and heads without a norm (`normed`), else whole heads."""
    if normed or hidden > WIDEST:
        return by_heads(rows, heads, dim, hidden, multiprocessors)
    tiles = heads * triton.cdiv(dim, PAIRS)
    if row_tile(rows) == 64 or (hidden > 1024 and tiles > multiprocessors):
        block_k, warps, stages = STREAMED
        return LinearLaunch(PAIRS, block_k, 1, warps, stages, over_k=True)
    return LinearLaunch(PAIRS, *whole(hidden), over_k=True)


def by_heads(rows: int, heads: int, dim: int, hidden: int, multiprocessors: int) -> LinearLaunch:
    """A program a multiprocessor, each with a share of one head's K."""
    block_k, warps, stages = TABLE[row_tile(rows)]
    width = triton.next_power_of_2(dim)
    if width > 64:
        block_k, warps = max(16, 64 * block_k // width), 4
        stages = 4 if row_tile(rows) == 16 else stages
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
    settled: bool = False,
) -> Tensor:
    """As `reference.project_rope_write_kv`, for at most 64 rows.

    Parameters
    ----------
    launch : LinearLaunch, optional
        Instead of the table's. With `over_k`, tiles of `block_n` columns, half of them of each half
        of a head, without splits; otherwise `block_n` is the head's width rounded up to a power of
        two.
    scratch : Scratch, optional
        Reused; without it a launch by heads allocates and clears its own.
    ahead : Tensor, optional
        A weight that is read soon; see `to_fetch`.
    settled : bool
        `positions` and `slots` were written before the last product ahead of this kernel (see
        `release_next`): they may then be read while the kernel ahead ends.

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
        sms = multiprocessors(a.device)
        launch = choose(rows, all_heads, dim, hidden, sms, qk_norm is not None)
        launch = fitting(launch, rows, a.element_size())
    _check(launch, dim, qk_norm)
    q = torch.empty((rows, heads, dim), dtype=a.dtype, device=a.device)
    following, parts = to_fetch(ahead, a.device)
    each, splits = shares(hidden, launch)
    product = a, a.stride(0), squares, 0 if squares is None else squares.stride(0), weight
    places = cos, signed_sin, positions, slots, q, k_cache, v_cache
    strides = k_cache.stride(), v_cache.stride()
    options: dict[str, Any] = {
        "K": hidden,
        "SQUARES": 1 if squares is None else len(squares),
        "H": heads,
        "HKV": kv_heads,
        "D": dim,
        "PAGE_SIZE": page_size,
        "ROWS": row_tile(rows),
        "BLOCK_N": launch.block_n,
        "BLOCK_K": launch.block_k,
        "EACH": each,
        "STAGES": launch.num_stages,
        "PARTS": parts,
        "PREFETCH": launch.prefetch and (each == 1 or fetchable(weight)),
        "SETTLED": settled,
        "EARLY": launch.early,
        "num_warps": launch.num_warps,
        **dependent(launch.pdl, a.device),
    }
    if launch.over_k:
        tiles = all_heads * triton.cdiv(dim // 2, launch.block_n // 2)
        project_pairs[(tiles,)](
            *product,
            weight.stride(0),
            bias,
            *places,
            *strides,
            following,
            rows,
            eps,
            SHARERS=launch.sharers(),
            **options,
        )
        return q
    floats, tiles = scratch_size(rows, all_heads * launch.block_n, hidden, launch, alone=True)
    if scratch is None:
        scratch = Scratch.make(a.device, floats, tiles)
    scratch.check(floats, tiles)
    _project_rope_write_kv[(all_heads, splits)](
        *product,
        weight.stride(0),
        bias,
        qk_norm,
        *places,
        *strides,
        scratch.partial,
        scratch.counters,
        following,
        rows,
        eps,
        SPLITS=splits,
        **options,
    )
    return q


def _check(launch: LinearLaunch, dim: int, qk_norm: Tensor | None) -> None:
    if not launch.over_k:
        if launch.block_n != triton.next_power_of_2(dim):
            raise ValueError(f"a tile is one head of {dim}, not {launch.block_n} columns")
        return
    if qk_norm is not None:
        raise ValueError("a tile of matching halves does not hold the head that is to be normed")
    if launch.splits != 1:
        raise ValueError(f"matching halves are not split over K, but splits is {launch.splits}")


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
    k_stride,
    v_stride,
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
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    PREFETCH: tl.constexpr,
    SETTLED: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    HEADS: tl.constexpr = H + 2 * HKV
    N: tl.constexpr = HEADS * D
    head, split = tl.program_id(0), tl.program_id(1)
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    pair = tl.where(d < D // 2, d + D // 2, d - D // 2)
    column = head * D + d
    inside = (row < n)[:, None] & (d < D)[None, :]
    rotates = head < H + HKV
    # weights depend on no kernel before this one
    held = begin_weight(weight, weight_stride, column, split, K, N, BLOCK_K, EACH, 1, PREFETCH, PDL)
    if bias is not None:
        addend, partner_addend = load_pair(bias, head, d, pair, d < D, D)
    if qk_norm is not None:
        scale, partner_scale = load_pair(qk_norm, head, d, pair, (d < D) & rotates, D)
    if SETTLED:
        position, slot = load_places(positions, slots, row, n)
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
        split,
        n,
        K,
        N,
        BLOCK_K,
        EACH,
        STAGES,
        1,
        PREFETCH and EACH == 1,
    )
    # whoever is last has these while programs meet
    c, s = load_rotation(cos, signed_sin, position, d, inside, rotates, D)
    fetch_share(following, PARTS)
    release_next(PDL and not EARLY)
    # through scratch even without splits: the rotation needs elements of other threads
    store_part(partial, total, head, split, HEADS)
    if last_to_arrive(counters + head, SPLITS):
        value = sum_parts(partial, row, d, head, HEADS, ROWS, BLOCK_N, SPLITS)
        partner = sum_parts(partial, row, pair, head, HEADS, ROWS, BLOCK_N, SPLITS)
        if squares is not None:
            divided = root(loaded, eps, K)[:, None]
            value *= divided
            partner *= divided
        if bias is not None:
            value += addend.to(tl.float32)[None, :]
            partner += partner_addend.to(tl.float32)[None, :]
        value, partner = value.to(x.dtype.element_ty), partner.to(x.dtype.element_ty)
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
