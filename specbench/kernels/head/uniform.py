"""The engine's counter-based random numbers in one launch, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.random import Purpose

_BLOCK = 128


def uniform(
    seed: int, request: Tensor, start: Tensor, offset: Tensor | int, purpose: Purpose
) -> Tensor:
    """As `engine.random.uniform`, bit for bit, for at most two dimensions.

    Parameters
    ----------
    seed, request, start, offset, purpose
        As there; plain torch takes more than a hundred launches for them.

    Returns
    -------
    Tensor
        float64 in [0, 1), of the broadcast shape.
    """
    tensors = [start, request] if isinstance(offset, int) else [start, request, offset]
    views = torch.broadcast_tensors(*tensors)
    shape = views[0].shape
    if len(shape) > 2:
        raise ValueError(f"at most two dimensions, not {len(shape)}")
    out = torch.empty(shape, dtype=torch.float64, device=request.device)
    columns = shape[-1] if len(shape) == 2 else 1
    # (row, column) strides; a single dimension is a column of rows
    strides = [(*view.stride(), 0)[:2] if view.dim() else (0, 0) for view in views]
    if out.numel():
        _uniform[(triton.cdiv(out.numel(), _BLOCK),)](
            out,
            views[0],
            views[1],
            offset if isinstance(offset, int) else views[2],
            *strides[0],
            *strides[1],
            *(strides[2] if len(strides) == 3 else (0, 0)),
            seed,
            out.numel(),
            columns,
            PURPOSE=int(purpose),
            ONE_OFFSET=isinstance(offset, int),
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return out


@triton.jit(do_not_specialize=["seed", "offset"])
def _uniform(
    out,
    start,
    request,
    offset,
    start_row,
    start_column,
    request_row,
    request_column,
    offset_row,
    offset_column,
    seed,
    n,
    columns,
    PURPOSE: tl.constexpr,
    ONE_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    row, column = (index // columns).to(tl.int64), (index % columns).to(tl.int64)
    c0 = tl.load(start + row * start_row + column * start_column, mask=inside, other=0)
    c2 = tl.load(request + row * request_row + column * request_column, mask=inside, other=0)
    if ONE_OFFSET:
        c1 = tl.full((BLOCK,), 0, tl.int64) + offset
    else:
        c1 = tl.load(offset + row * offset_row + column * offset_column, mask=inside, other=0)
    c3 = tl.full((BLOCK,), PURPOSE, tl.uint32)
    high, low, _, _ = tl.philox(seed, c0.to(tl.uint32), c1.to(tl.uint32), c2.to(tl.uint32), c3)
    u = ((high >> 5).to(tl.float64) * 2.0**26 + (low >> 6).to(tl.float64)) * 2.0**-53
    tl.store(out + index, u, mask=inside)
