"""RMS norm of the residual stream in Triton, with the addition before it in the same launch."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import check_dtype, dependent, release_next, wait_for_previous
from specbench.kernels.norm.reference import Prenormed


@dataclass(frozen=True)
class NormLaunch:
    """How one program normalises its row.

    Attributes
    ----------
    num_warps : int
        Warps of a program.
    pdl : bool
        Programmatic dependent launch: start while the kernel before ends.
    """

    num_warps: int
    pdl: bool = True


# widest row: launch; a lane holds 8 to 32 elements
TABLE = {1024: NormLaunch(4), 4096: NormLaunch(8), 16384: NormLaunch(16)}


def rms_norm(x: Tensor, weight: Tensor, eps: float, launch: NormLaunch | None = None) -> Tensor:
    """As `reference.rms_norm`; rows of `x` may be strided."""
    return _launch(x, None, weight, eps, launch)


def add_rms_norm(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, launch: NormLaunch | None = None
) -> Tensor:
    """As `reference.add_rms_norm`: `x` is updated in place; rows may be strided."""
    return _launch(x, delta, weight, eps, launch)


def prenorm(
    x: Tensor, weight: Tensor, delta: Tensor | None = None, launch: NormLaunch | None = None
) -> Prenormed:
    """As `reference.prenorm`; rows may be strided."""
    squares = torch.empty((1, len(x)), dtype=torch.float32, device=x.device)
    return Prenormed(_launch(x, delta, weight, 0.0, launch, squares), squares)


def embed_prenorm(
    tokens: Tensor, table: Tensor, weight: Tensor, launch: NormLaunch | None = None
) -> tuple[Tensor, Prenormed]:
    """As `reference.embed_prenorm`; rows of `table` may be strided, ids are not checked."""
    n = len(tokens)
    if table.stride(1) != 1 or not tokens.is_contiguous():
        raise ValueError("token ids, and the elements of a row, must be adjacent")
    x = torch.empty((n, table.shape[1]), dtype=table.dtype, device=table.device)
    squares = torch.empty((1, n), dtype=torch.float32, device=table.device)
    return x, Prenormed(_launch(x, table, weight, 0.0, launch, squares, tokens), squares)


def _launch(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    eps: float,
    launch: NormLaunch | None,
    squares: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    rows, hidden = x.shape
    check_dtype(x)
    if x.stride(1) != 1 or (delta is not None and delta.stride(1) != 1):
        raise ValueError("the elements of a row must be adjacent")
    out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if launch is None:
        launch = next((TABLE[width] for width in TABLE if hidden <= width), NormLaunch(32))
    if rows:
        _add_rms_norm[(rows,)](
            x,
            x if delta is None else delta,
            weight,
            out,
            squares,
            tokens,
            x.stride(0),
            0 if delta is None else delta.stride(0),
            eps,
            HIDDEN=hidden,
            BLOCK=triton.next_power_of_2(hidden),
            ADD=delta is not None,
            num_warps=launch.num_warps,
            **dependent(launch.pdl, x.device),
        )
    return out


@triton.jit
def _add_rms_norm(
    x,
    delta,
    weight,
    out,
    squares,
    tokens,
    x_stride,
    delta_stride,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < HIDDEN
    release_next(PDL)
    # a weight depends on no kernel: its load may overlap the end of the one before
    scale = tl.load(weight + column, mask=inside, other=0).to(tl.float32)
    wait_for_previous(PDL)
    at = x + row * x_stride + column
    if tokens is not None:
        # the stream begins with the table's row
        token = tl.load(tokens + row)
        begun = tl.load(delta + token * delta_stride + column, mask=inside, other=0)
        tl.store(at, begun, mask=inside)
        value = begun.to(tl.float32)
    else:
        value = tl.load(at, mask=inside, other=0).to(tl.float32)
    if ADD and tokens is None:
        value += tl.load(delta + row * delta_stride + column, mask=inside, other=0).to(tl.float32)
        # the norm sees the stream as it is stored
        rounded = value.to(x.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    total = tl.sum(value * value, 0)
    if squares is None:
        value *= tl.rsqrt(total / HIDDEN + eps)
    else:
        tl.store(squares + row, total)
    normed = value * scale
    tl.store(out + row * HIDDEN + column, normed.to(out.dtype.element_ty), mask=inside)
