"""A projection of a few rows that streams its weight once, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    FETCHERS,
    Scratch,
    check_dtype,
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
    begin_weight,
    finish,
    load_residual,
    load_squares,
    project,
    root,
    store_part,
    sum_parts,
)
from specbench.kernels.linear.plan import (
    MAX_ROWS,
    LinearLaunch,
    choose,
    fitting,
    scratch_size,
    shares,
)
from specbench.kernels.norm.reference import Prenormed


def linear_small(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float = 0.0,
    residual: Tensor | None = None,
    launch: LinearLaunch | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """As `reference.linear_small`, for at most 64 rows.

    Parameters
    ----------
    x, weight, bias, eps, residual
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
    out = residual
    if out is None:
        rows = x.rows if isinstance(x, Prenormed) else x
        out = torch.empty((len(rows), len(weight)), dtype=rows.dtype, device=rows.device)
    _launch(x, weight, bias, eps, out, residual is not None, None, launch, scratch)
    return out


def linear_prenorm(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor,
    eps: float = 0.0,
    residual: Tensor,
    launch: LinearLaunch | None = None,
    scratch: Scratch | None = None,
    ahead: Tensor | None = None,
) -> Prenormed:
    """As `reference.linear_prenorm`, for at most 64 rows, in one launch.

    Parameters
    ----------
    x, weight, bias, eps, residual, launch, scratch
        As for `linear_small`.
    norm : Tensor
        `[N]`, the weight of the norm that the stream goes through next.
    ahead : Tensor, optional
        A weight that is read soon; see `to_fetch`.

    Returns
    -------
    Prenormed
        `[n, N]`, with a part of the squares for each tile.
    """
    made = _launch(x, weight, bias, eps, residual, True, norm, launch, scratch, ahead)
    assert made is not None
    return made


def _launch(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    add: bool,
    norm: Tensor | None,
    launch: LinearLaunch | None,
    scratch: Scratch | None,
    ahead: Tensor | None = None,
) -> Prenormed | None:
    a, squares = operands(x, weight)
    rows, inner = a.shape
    outputs = len(weight)
    if launch is None:
        launch = choose(rows, outputs, inner, multiprocessors(a.device))
        launch = fitting(launch, rows, a.element_size())
    each, splits = shares(inner, launch)
    floats, tiles = scratch_size(rows, outputs, inner, launch)
    if scratch is None:
        scratch = Scratch.make(a.device, floats, tiles)
    scratch.check(floats, tiles)
    grid = triton.cdiv(outputs, launch.block_n), splits
    following, parts = to_fetch(ahead, a.device)
    fetchers = 0 if following is None else triton.cdiv(FETCHERS, splits)
    made = None
    if norm is not None:
        made = Prenormed(
            torch.empty((rows, outputs), dtype=out.dtype, device=out.device),
            torch.empty((grid[0], rows), dtype=torch.float32, device=out.device),
        )
    _linear[(grid[0] + fetchers, splits)](
        a,
        a.stride(0),
        squares,
        0 if squares is None else squares.stride(0),
        weight,
        weight.stride(0),
        bias,
        out,
        out.stride(0),
        norm,
        None if made is None else made.rows,
        None if made is None else made.squares,
        rows,
        scratch.partial,
        scratch.counters,
        following,
        rows,
        eps,
        K=inner,
        N=outputs,
        SQUARES=1 if squares is None else len(squares),
        ROWS=row_tile(rows),
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        EACH=each,
        SPLITS=splits,
        STAGES=launch.num_stages,
        SHARERS=launch.sharers(),
        PARTS=parts,
        ADD=add,
        EARLY=launch.early,
        PREFETCH=launch.prefetch and (each == 1 or fetchable(weight)),
        num_warps=launch.num_warps,
        # contracted with a shuffled sum, a square would differ in its last bit from lane to lane
        # (triton-lang/triton#7264); of 16-bit types it is exact
        enable_fp_fusion=out.dtype != torch.float32,
        **dependent(launch.pdl, a.device),
    )
    return made


def operands(x: Tensor | Prenormed, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """The rows to be multiplied, and the squares of what they were; see `check_operands`."""
    if not isinstance(x, Prenormed):
        check_operands(x, weight)
        return x, None
    check_operands(x.rows, weight)
    if x.rows.dtype == torch.float16:
        raise ValueError("a prenormed product is divided last: float16 could overflow")
    return x.rows, x.squares


def check_operands(x: Tensor, weight: Tensor) -> None:
    """Raise ValueError for rows and types that the kernels of this kind do not take."""
    check_dtype(x)
    if not 1 <= len(x) <= MAX_ROWS:
        raise ValueError(f"1 to {MAX_ROWS} rows, not {len(x)}: take torch's linear")
    if weight.dtype != x.dtype:
        raise ValueError(f"a weight of {weight.dtype} for rows of {x.dtype}")
    if x.stride(1) != 1 or weight.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")


@triton.jit
def _linear(
    x,
    x_stride,
    squares,
    squares_stride,
    weight,
    weight_stride,
    bias,
    out,
    out_stride,
    next_norm,
    next_rows,
    next_squares,
    next_stride,
    partial,
    counters,
    following,
    n,
    eps,
    K: tl.constexpr,
    N: tl.constexpr,
    SQUARES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    SHARERS: tl.constexpr,
    PARTS: tl.constexpr,
    ADD: tl.constexpr,
    PREFETCH: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    if tile >= TILES:
        # a weight depends on no kernel: nothing to wait for
        fetchers = (tl.num_programs(0) - TILES) * SPLITS
        fetch_ahead(following, (tile - TILES) * SPLITS + split, fetchers, PARTS)
    else:
        row = tl.arange(0, ROWS)
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        # weights depend on no kernel before this one
        held = begin_weight(
            weight,
            weight_stride,
            column,
            split,
            K,
            N,
            BLOCK_K,
            EACH,
            SHARERS,
            PREFETCH,
            PDL,
        )
        addend, scale, before, loaded = bias, next_norm, None, squares
        if bias is not None:
            addend = tl.load(bias + column, mask=column < N, other=0)
        if next_norm is not None:
            scale = tl.load(next_norm + column, mask=column < N, other=0)
        wait_for_previous(PDL)
        release_next(PDL and EARLY)
        # what does not depend on the sum is on its way before the sum begins
        if ADD:
            before = load_residual(out, out_stride, row, column, n, N)
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
            SHARERS,
            PREFETCH and EACH == 1,
        )
        release_next(PDL and not EARLY)
        last = SPLITS == 1
        if SPLITS > 1:
            store_part(partial, total, tile, split, TILES)
            last = last_to_arrive(counters + tile, SPLITS)
            if last:
                local = tl.arange(0, BLOCK_N)
                total = sum_parts(partial, row, local, tile, TILES, ROWS, BLOCK_N, SPLITS)
        if last:
            if squares is not None:
                total *= root(loaded, eps, K)[:, None]
            finish(
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
                N,
            )
