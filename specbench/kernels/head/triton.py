"""The LM head and its arg-max in one launch, without logits in memory, in Triton."""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    Scratch,
    dependent,
    fetchable,
    last_to_arrive,
    multiprocessors,
    release_next,
    row_tile,
    wait_for_previous,
)
from specbench.kernels.linear.device import load_squares, prefetch_weight, project, root
from specbench.kernels.linear.plan import MAX_ROWS, in_flight
from specbench.kernels.linear.triton import operands
from specbench.kernels.norm.reference import Prenormed

# a row's best so far is one int64, behind them the count of programs that are done
_COUNTER = 2 * MAX_ROWS
SCRATCH_TILES = _COUNTER + 1


@dataclass(frozen=True)
class HeadLaunch:
    """How the vocabulary is cut into programs.

    Attributes
    ----------
    block_n, block_k : int
        Rows and columns of the weight that a program holds at once, powers of two.
    per_multiprocessor : int
        Programs for each multiprocessor; each goes through an equal share of the tiles.
    flatten : bool
        Pipeline loads across tiles, not only within one.
    num_warps, num_stages : int
    pdl, prefetch : bool
        As for `LinearLaunch`.
    """

    block_n: int
    block_k: int
    per_multiprocessor: int = 2
    flatten: bool = True
    num_warps: int = 4
    num_stages: int = 4
    pdl: bool = True
    prefetch: bool = False


# by row tile
TABLE = {
    16: HeadLaunch(128, 128, 1, num_stages=5),
    32: HeadLaunch(128, 128, 1, num_stages=4),
    64: HeadLaunch(64, 128, 2, num_stages=3),
}


def head_argmax(
    hidden: Tensor | Prenormed,
    weight: Tensor,
    *,
    eps: float = 0.0,
    launch: HeadLaunch | None = None,
    scratch: Scratch | None = None,
) -> tuple[Tensor, Tensor]:
    """As `reference.head_argmax`, for at most 64 rows.

    Parameters
    ----------
    launch : HeadLaunch, optional
        Instead of the table's.
    scratch : Scratch, optional
        Reused; without it the call allocates and clears its own.

    Returns
    -------
    token, bad : Tensor
        int64 and bool `[n]`.
    """
    a, squares = operands(hidden, weight)
    rows, inner = a.shape
    if launch is None:
        launch = TABLE[row_tile(rows)]
        load = (row_tile(rows) + launch.block_n) * launch.block_k * a.element_size()
        launch = replace(launch, num_stages=in_flight(launch.num_stages, load))
    scratch = scratch or Scratch.make(a.device, 0, SCRATCH_TILES)
    scratch.check(0, SCRATCH_TILES)
    tiles = triton.cdiv(len(weight), launch.block_n)
    each = triton.cdiv(tiles, launch.per_multiprocessor * multiprocessors(a.device))
    token = torch.empty(rows, dtype=torch.int64, device=a.device)
    bad = torch.empty(rows, dtype=torch.bool, device=a.device)
    _head_argmax[(triton.cdiv(tiles, each),)](
        a,
        a.stride(0),
        squares,
        0 if squares is None else squares.stride(0),
        weight,
        weight.stride(0),
        token,
        bad,
        scratch.counters[:_COUNTER].view(torch.int64),
        scratch.counters[_COUNTER:],
        rows,
        eps,
        K=inner,
        PARTS=1 if squares is None else len(squares),
        V=len(weight),
        ROWS=row_tile(rows),
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        BLOCKS=triton.cdiv(inner, launch.block_k),
        TILES=each,
        FLATTEN=launch.flatten,
        STAGES=launch.num_stages,
        PREFETCH=launch.prefetch and fetchable(weight),
        num_warps=launch.num_warps,
        **dependent(launch.pdl, a.device),
    )
    return token, bad


@triton.jit
def _head_argmax(
    hidden,
    hidden_stride,
    squares,
    squares_stride,
    weight,
    weight_stride,
    token,
    bad,
    best,
    counter,
    n,
    eps,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    FLATTEN: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    first = tl.program_id(0) * (TILES * BLOCK_N) + tl.arange(0, BLOCK_N)
    if PDL and PREFETCH:
        prefetch_weight(weight, weight_stride, first, 0, K, V, BLOCK_K, BLOCKS)
    wait_for_previous(PDL)
    mine = tl.zeros((ROWS,), tl.int64)
    divided = 1.0
    if squares is not None:
        loaded = load_squares(squares, squares_stride, row, n, PARTS)
        divided = root(loaded, eps, K)[:, None]
    for tile in tl.range(TILES, flatten=FLATTEN):
        column = first + tile * BLOCK_N
        total = project(
            hidden,
            hidden_stride,
            weight,
            weight_stride,
            weight,
            row,
            column,
            0,
            n,
            K,
            V,
            BLOCK_K,
            BLOCKS,
            STAGES,
            1,
            False,
        )
        # equal in the model's dtype is equal
        logits = (total * divided).to(weight.dtype.element_ty)
        candidates = tl.where((column < V)[None, :], _packed(logits, column[None, :]), 0)
        mine = tl.maximum(mine, tl.max(candidates, 1))
    release_next(PDL)
    tl.atomic_max(best + row, mine, mask=row < n, sem="relaxed")
    if last_to_arrive(counter, tl.num_programs(0)):
        winner = tl.load(best + row, mask=row < n, other=0, cache_modifier=".cg")
        tl.store(best + row, tl.zeros((ROWS,), tl.int64), mask=row < n)
        order = (winner >> 31) - 2**31
        # outside the orders of the finite numbers: -inf below, +inf and NaN above
        tl.store(bad + row, (order <= -0x7F800001) | (order >= 0x7F800000), mask=row < n)
        tl.store(token + row, 0x7FFFFFFF - (winner & 0x7FFFFFFF), mask=row < n)


@triton.jit
def _packed(logits, column):
    """A positive int64 that grows with the logit, and among equal logits as the id falls.

    NaN is above everything, as torch's arg-max has it.
    """
    value = logits.to(tl.float32)
    # two zeros are equal, their bits are not
    value = tl.where(value == 0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(value != value, 0x7FFFFFFF, order)
    return ((order.to(tl.int64) + 2**31) << 31) | (0x7FFFFFFF - column).to(tl.int64)
