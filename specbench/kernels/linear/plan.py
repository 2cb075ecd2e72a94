"""How a projection of a few rows is cut into programs."""

from dataclasses import dataclass, replace

import triton

from specbench.kernels.launch import row_tile

# rows of a matrix tile; more of them are cuBLAS's business
MAX_ROWS = 64
# bytes of shared memory that a program may have on an H100 or H200
SHARED = 227 * 1024


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
        Programmatic dependent launch, where the device has it (`launch.overlaps`).
    prefetch : bool
        Then fetch the program's weights into L2 before the wait.
    """

    block_n: int
    block_k: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 4
    pdl: bool = True
    prefetch: bool = True


# row tile: (block_n, block_k, num_warps, num_stages)
TABLE = {16: (32, 128, 4, 4), 32: (32, 128, 4, 4), 64: (32, 128, 4, 4)}
_NARROW = 16
# a share of fewer blocks is all latency
_LEAST_BLOCKS = 4


def choose(rows: int, outputs: int, inner: int, multiprocessors: int) -> LinearLaunch:
    """Enough programs that every multiprocessor streams a share of the weight."""
    block_n, block_k, warps, stages = TABLE[row_tile(rows)]
    tiles, blocks = triton.cdiv(outputs, block_n), triton.cdiv(inner, block_k)
    most = max(1, blocks // _LEAST_BLOCKS)
    if tiles * most < multiprocessors:
        # K is too short to be shared: more tiles instead
        return LinearLaunch(_NARROW, block_k, 1, 2 if row_tile(rows) == 16 else warps, stages)
    # wide rows of x weigh on every split: one program a multiprocessor is enough for them
    programs = multiprocessors * (1 if row_tile(rows) == 64 else 2)
    return LinearLaunch(
        block_n, block_k, max(1, min(programs // tiles, most)), warps, stages, prefetch=False
    )


def fitting(launch: LinearLaunch, rows: int, item: int, weights: int = 1) -> LinearLaunch:
    """The launch with no more loads in flight than the shared memory holds.

    Parameters
    ----------
    launch : LinearLaunch
    rows : int
        Of x.
    item : int
        Bytes of an element.
    weights : int
        Tiles of weights that a program reads at once.
    """
    load = (row_tile(rows) + weights * launch.block_n) * launch.block_k * item
    return replace(launch, num_stages=max(1, min(launch.num_stages, SHARED // load)))


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
