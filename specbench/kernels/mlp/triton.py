"""SiLU times up, alone and behind the projection of a few rows, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    check_dtype,
    dependent,
    fetch_share,
    fetchable,
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
)
from specbench.kernels.linear.plan import LinearLaunch, fitting
from specbench.kernels.linear.triton import operands
from specbench.kernels.norm.reference import Prenormed


@dataclass(frozen=True)
class SiluLaunch:
    """The columns of a program, a power of two, and its warps; `pdl` as everywhere."""

    block: int = 1024
    num_warps: int = 4
    pdl: bool = True


# row tile: (block_n, block_k, num_warps, num_stages, over_k); a program holds two tiles, gate's
# and up's
TABLE = {16: (16, 64, 2, 4, False), 32: (32, 64, 4, 5, False), 64: (64, 64, 4, 5, False)}


def choose(rows: int, inner: int, multiprocessors: int) -> LinearLaunch:
    """Tiles narrow enough that half of the multiprocessors have one; K is never split."""
    block_n, block_k, warps, stages, over_k = TABLE[row_tile(rows)]
    while block_n > 16 and 2 * triton.cdiv(inner, block_n) < multiprocessors:
        block_n //= 2
    return LinearLaunch(
        block_n,
        block_k,
        1,
        warps,
        stages,
        prefetch=False,
        over_k=over_k,
        early=row_tile(rows) == 16,
    )


def silu_mul(gate_up: Tensor, launch: SiluLaunch | None = None) -> Tensor:
    """As `reference.silu_mul`; rows may be strided."""
    rows, width = gate_up.shape
    check_dtype(gate_up)
    if gate_up.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")
    inner = width // 2
    launch = launch or SiluLaunch()
    out = torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _silu_mul[(rows, triton.cdiv(inner, launch.block))](
            gate_up,
            gate_up.stride(0),
            out,
            INNER=inner,
            BLOCK=launch.block,
            num_warps=launch.num_warps,
            **dependent(launch.pdl, out.device),
        )
    return out


def gate_up_small(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 0.0,
    launch: LinearLaunch | None = None,
    ahead: Tensor | None = None,
) -> Tensor:
    """As `reference.gate_up_small`, for at most 64 rows, in one launch.

    `launch.splits` must be 1: `inner` is wide enough to occupy the device. `ahead` is a weight that
    is read next; see `to_fetch`.
    """
    a, squares = operands(x, weight)
    rows, hidden = a.shape
    inner = len(weight) // 2
    if launch is None:
        launch = choose(rows, inner, multiprocessors(a.device))
        launch = fitting(launch, rows, a.element_size(), weights=2)
    if launch.splits != 1:
        raise ValueError(f"gate and up are not split over K, but splits is {launch.splits}")
    blocks = triton.cdiv(hidden, launch.block_k)
    out = torch.empty((rows, inner), dtype=a.dtype, device=a.device)
    following, parts = to_fetch(ahead, a.device)
    _gate_up[(triton.cdiv(inner, launch.block_n),)](
        a,
        a.stride(0),
        squares,
        0 if squares is None else squares.stride(0),
        weight,
        weight.stride(0),
        bias,
        out,
        following,
        rows,
        eps,
        K=hidden,
        N=inner,
        SQUARES=1 if squares is None else len(squares),
        ROWS=row_tile(rows),
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        BLOCKS=blocks,
        STAGES=launch.num_stages,
        SHARERS=launch.sharers(),
        PARTS=parts,
        EARLY=launch.early,
        PREFETCH=launch.prefetch and (blocks == 1 or fetchable(weight)),
        num_warps=launch.num_warps,
        **dependent(launch.pdl, a.device),
    )
    return out


@triton.jit
def _silu_mul(gate_up, stride, out, INNER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INNER
    release_next(PDL)
    wait_for_previous(PDL)
    at = gate_up + row * stride + column
    gate = tl.load(at, mask=inside, other=0)
    up = tl.load(at + INNER, mask=inside, other=0)
    tl.store(out + row * INNER + column, _gated(gate, up), mask=inside)


@triton.jit
def _gated(gate, up):
    """``silu(gate) * up``, both steps rounded to the dtype of `gate` as the model rounds them."""
    g = gate.to(tl.float32)
    silu = (g / (1 + tl.exp(-g))).to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _gate_up(
    x,
    x_stride,
    squares,
    squares_stride,
    weight,
    weight_stride,
    bias,
    out,
    following,
    n,
    eps,
    K: tl.constexpr,
    N: tl.constexpr,
    SQUARES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
    SHARERS: tl.constexpr,
    PARTS: tl.constexpr,
    PREFETCH: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    own = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # gate and up side by side, so that both sums of a pair are one thread's
    pair = tl.arange(0, 2 * BLOCK_N)
    column = tl.program_id(0) * BLOCK_N + pair // 2
    column = tl.where(column < N, column + pair % 2 * N, 2 * N)
    # weights depend on no kernel before this one
    held = begin_weight(
        weight, weight_stride, column, 0, K, 2 * N, BLOCK_K, BLOCKS, SHARERS, PREFETCH, PDL
    )
    if bias is not None:
        gate_addend = tl.load(bias + own, mask=own < N, other=0)
        up_addend = tl.load(bias + N + own, mask=own < N, other=0)
    wait_for_previous(PDL)
    release_next(PDL and EARLY)
    # on its way before the sum begins
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
        2 * N,
        BLOCK_K,
        BLOCKS,
        STAGES,
        SHARERS,
        PREFETCH and BLOCKS == 1,
    )
    fetch_share(following, PARTS)
    release_next(PDL and not EARLY)
    if squares is not None:
        total *= root(loaded, eps, K)[:, None]
    gate, up = tl.split(tl.reshape(total, (ROWS, BLOCK_N, 2)))
    if bias is not None:
        gate += gate_addend.to(tl.float32)[None, :]
        up += up_addend.to(tl.float32)[None, :]
    result = _gated(gate.to(out.dtype.element_ty), up.to(out.dtype.element_ty))
    inside = (row < n)[:, None] & (own < N)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * N + own[None, :], result, mask=inside)
