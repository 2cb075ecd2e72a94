"""A projection of a few rows that streams its weight once, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    Scratch,
    check_dtype,
    last_to_arrive,
    multiprocessors,
    release_next,
    row_tile,
    wait_for_previous,
)
from specbench.kernels.linear.device import (
    finish,
    prefetch_weight,
    project,
    store_part,
    sum_parts,
    sum_squares,
)
from specbench.kernels.linear.plan import MAX_ROWS, LinearLaunch, choose, scratch_size, shares


def linear_small(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    launch: LinearLaunch | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """As `reference.linear_small`, for at most 64 rows.

    Parameters
    ----------
    x, weight, bias, norm, eps, residual
        As for the reference; rows of all matrices may be strided.
    launch : LinearLaunch, optional
        Instead of the table's.
    scratch : Scratch, optional
        Reused; without it a launch that splits K allocates and clears its own.

    Returns
    -------
    Tensor
        `[n, N]`.
    """
    rows, inner = x.shape
    outputs = len(weight)
    check_operands(x, weight, norm)
    if launch is None:
        launch = choose(rows, outputs, inner, multiprocessors(x.device))
    each, splits = shares(inner, launch)
    floats, tiles = scratch_size(rows, outputs, inner, launch)
    if scratch is None:
        scratch = Scratch.make(x.device, floats, tiles)
    scratch.check(floats, tiles)
    out = residual
    if out is None:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    _linear[(triton.cdiv(outputs, launch.block_n), splits)](
        x,
        x.stride(0),
        weight,
        weight.stride(0),
        norm,
        bias,
        out,
        out.stride(0),
        scratch.partial,
        scratch.counters,
        rows,
        eps,
        K=inner,
        N=outputs,
        ROWS=row_tile(rows),
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        EACH=each,
        SPLITS=splits,
        STAGES=launch.num_stages,
        ADD=residual is not None,
        PDL=launch.pdl,
        num_warps=launch.num_warps,
        launch_pdl=launch.pdl,
    )
    return out


def check_operands(x: Tensor, weight: Tensor, norm: Tensor | None) -> None:
    """Raise ValueError for rows and types that the kernels of this kind do not take."""
    check_dtype(x)
    if not 1 <= len(x) <= MAX_ROWS:
        raise ValueError(f"1 to {MAX_ROWS} rows, not {len(x)}: take torch's linear")
    if weight.dtype != x.dtype:
        raise ValueError(f"a weight of {weight.dtype} for rows of {x.dtype}")
    if x.stride(1) != 1 or weight.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")
    if norm is not None and x.dtype == torch.float16:
        raise ValueError("the folded norm multiplies before it divides: float16 could overflow")


@triton.jit
def _linear(
    x,
    x_stride,
    weight,
    weight_stride,
    norm,
    bias,
    out,
    out_stride,
    partial,
    counters,
    n,
    eps,
    K: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    release_next(PDL)
    if PDL:
        prefetch_weight(weight, weight_stride, column, split, K, N, BLOCK_K, EACH)
    wait_for_previous(PDL)
    total, squares = project(
        x, x_stride, weight, weight_stride, norm, row, column, split, n, K, N, BLOCK_K, EACH, STAGES
    )
    if SPLITS == 1:
        finish(total, squares, norm, bias, out, out_stride, row, column, n, eps, K, N, ADD)
    else:
        tiles = tl.num_programs(0)
        store_part(partial, total, squares, norm, tile, split, tiles, SPLITS)
        if last_to_arrive(counters + tile, SPLITS):
            local = tl.arange(0, BLOCK_N)
            total = sum_parts(partial, row, local, tile, tiles, ROWS, BLOCK_N, SPLITS)
            squares = sum_squares(partial, norm, row, tile, tiles, ROWS, BLOCK_N, SPLITS)
            finish(total, squares, norm, bias, out, out_stride, row, column, n, eps, K, N, ADD)
