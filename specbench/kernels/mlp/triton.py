"""SiLU times up, alone and behind the projection of a few rows, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    check_dtype,
    dependent,
    fetch_ahead,
    fetchable,
    multiprocessors,
    release_next,
    row_tile,
    to_fetch,
    wait_for_previous,
)
from specbench.kernels.linear.device import prefetch_weight, root
from specbench.kernels.linear.plan import LinearLaunch, fitting
from specbench.kernels.linear.triton import operands
from specbench.kernels.norm.reference import Prenormed


@dataclass(frozen=True)
class SiluLaunch:
    """The columns of a program, a power of two, and its warps; `pdl` as everywhere."""

    block: int = 1024
    num_warps: int = 4
    pdl: bool = True


# row tile: (block_n, block_k, num_warps, num_stages); a program holds two tiles, gate's and up's
TABLE = {16: (32, 64, 4, 5), 32: (32, 64, 4, 5), 64: (64, 64, 4, 5)}


def choose(rows: int, inner: int, multiprocessors: int) -> LinearLaunch:
    """Tiles narrow enough that half of the multiprocessors have one; K is never split."""
    block_n, block_k, warps, stages = TABLE[row_tile(rows)]
    while block_n > 16 and 2 * triton.cdiv(inner, block_n) < multiprocessors:
        block_n //= 2
    return LinearLaunch(block_n, block_k, 1, warps, stages, prefetch=False)


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
        BLOCKS=triton.cdiv(hidden, launch.block_k),
        STAGES=launch.num_stages,
        PARTS=parts,
        PREFETCH=launch.prefetch and fetchable(weight),
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
    PARTS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    up_weight = weight + tl.cast(N, tl.int64) * weight_stride
    if PDL and PREFETCH:
        prefetch_weight(weight, weight_stride, column, 0, K, N, BLOCK_K, BLOCKS)
        prefetch_weight(up_weight, weight_stride, column, 0, K, N, BLOCK_K, BLOCKS)
    wait_for_previous(PDL)
    gate = tl.zeros((ROWS, BLOCK_N), tl.float32)
    up = tl.zeros((ROWS, BLOCK_N), tl.float32)
    row_in, column_in = (row < n)[:, None], (column < N)[:, None]
    x_row = x + row.to(tl.int64)[:, None] * x_stride
    at = column.to(tl.int64)[:, None] * weight_stride
    for block in tl.range(BLOCKS, num_stages=STAGES):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        if K % BLOCK_K == 0:
            a = tl.load(x_row + k[None, :], mask=row_in, other=0)
            g = tl.load(weight + at + k[None, :], mask=column_in, other=0)
            u = tl.load(up_weight + at + k[None, :], mask=column_in, other=0)
        else:
            k_in = (k < K)[None, :]
            a = tl.load(x_row + k[None, :], mask=row_in & k_in, other=0)
            g = tl.load(weight + at + k[None, :], mask=column_in & k_in, other=0)
            u = tl.load(up_weight + at + k[None, :], mask=column_in & k_in, other=0)
        gate = tl.dot(a, tl.trans(g), gate, input_precision="ieee")
        up = tl.dot(a, tl.trans(u), up, input_precision="ieee")
    fetch_ahead(
        following,
        tl.program_id(1) * tl.num_programs(0) + tl.program_id(0),
        tl.num_programs(0) * tl.num_programs(1),
        PARTS,
    )
    release_next(PDL)
    if squares is not None:
        divided = root(squares, squares_stride, row, n, eps, K, SQUARES)[:, None]
        gate *= divided
        up *= divided
    if bias is not None:
        gate += tl.load(bias + column, mask=column < N, other=0).to(tl.float32)[None, :]
        up += tl.load(bias + N + column, mask=column < N, other=0).to(tl.float32)[None, :]
    result = _gated(gate.to(out.dtype.element_ty), up.to(out.dtype.element_ty))
    inside = row_in & (column < N)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * N + column[None, :], result, mask=inside)
