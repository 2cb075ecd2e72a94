"""How a projection of a few rows is cut into programs."""

from dataclasses import dataclass

import triton

from specbench.kernels.launch import row_tile

# rows of a matrix tile; more of them are cuBLAS's business
MAX_ROWS = 64


@dataclass(frozen=True)
class LinearLaunch:
    """The tiles of a launch.

    Attributes
    ----------
    block_n, block_k : int
        Rows and columns of the weight that a program holds at once, powers of two.
    splits : int
        Programs that share the K of one tile; their sums meet in scratch memory.
    num_warps, num_stages : int
        Warps of a program, and loads in flight.
    pdl : bool
        Programmatic dependent launch; the weights are fetched into L2 before the wait.
    """

    block_n: int
    block_k: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 4
    pdl: bool = True


# row tile: (block_n, block_k, num_warps, num_stages)
TABLE = {16: (32, 128, 4, 4), 32: (32, 128, 4, 4), 64: (64, 128, 4, 3)}


def choose(rows: int, outputs: int, inner: int, multiprocessors: int) -> LinearLaunch:
    """Enough programs that every multiprocessor streams a share of the weight."""
    block_n, block_k, warps, stages = TABLE[row_tile(rows)]
    tiles, blocks = triton.cdiv(outputs, block_n), triton.cdiv(inner, block_k)
    # two blocks a program at least: a share that short is all latency
    splits = max(1, min(round(multiprocessors / tiles), blocks // 2))
    return LinearLaunch(block_n, block_k, splits, warps, stages)


def shares(inner: int, launch: LinearLaunch) -> tuple[int, int]:
    """Blocks of K of each program, and how many programs that makes of `launch.splits`."""
    blocks = triton.cdiv(inner, launch.block_k)
    each = triton.cdiv(blocks, launch.splits)
    return each, triton.cdiv(blocks, each)


def scratch_size(
    rows: int, outputs: int, inner: int, launch: LinearLaunch, alone: bool = False
) -> tuple[int, int]:
    """Floats and tiles of the scratch of a launch; none where a tile's only program needs none.

    `alone` says that it does: its threads meet there.
    """
    _, splits = shares(inner, launch)
    tiles, height = triton.cdiv(outputs, launch.block_n), row_tile(rows)
    if splits == 1 and not alone:
        return 0, 0
    return splits * tiles * height * launch.block_n, tiles
