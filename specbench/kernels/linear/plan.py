"""How a projection of a few rows is cut into programs."""

from dataclasses import dataclass, replace

import triton

from specbench.kernels.launch import row_tile

# rows of a matrix tile; more of them are cuBLAS's business
MAX_ROWS = 64
# rows of x so few that each tile may read all of them
FEW = 4
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
        Fetch the program's weights before the wait: into L2, and into registers where its share of
        K is one block.
    over_k : bool
        Warps share a block's K, 16 columns of it or more each, and not the tile's columns.
    early : bool
        Let the next kernel in behind the wait, and not behind the sum: it has longer to read what
        it reads before its own wait, and takes room meanwhile.
    """

    block_n: int
    block_k: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 4
    pdl: bool = True
    prefetch: bool = True
    over_k: bool = False
    early: bool = False

    def sharers(self) -> int:
        """Warps that share the K of a block.

        Raises
        ------
        ValueError
            Their parts are too narrow for a tensor core's instruction.
        """
        if not self.over_k:
            return 1
        if self.block_k < 16 * self.num_warps:
            raise ValueError(
                f"{self.num_warps} warps share blocks of {self.block_k}: each needs 16 columns"
            )
        return self.num_warps


# row tile: (block_n, block_k, num_warps, num_stages)
TABLE = {16: (32, 128, 4, 4), 32: (32, 128, 4, 4), 64: (32, 128, 4, 4)}
_NARROW = 16
# a share of fewer blocks is all latency
_LEAST_BLOCKS = 4
# K that a program takes as one block, and of it a warp's part
_WHOLE, _PART = 2048, 128


def whole(inner: int) -> tuple[int, int, int]:
    """`block_k`, `splits` and `num_warps` of a program that takes all of K at once."""
    block_k = max(_PART, triton.next_power_of_2(inner))
    return block_k, 1, min(8, block_k // _PART)


def choose(rows: int, outputs: int, inner: int, multiprocessors: int) -> LinearLaunch:
    """Enough programs that every multiprocessor streams a share of the weight."""
    block_n, block_k, warps, stages = TABLE[row_tile(rows)]
    tiles, blocks = triton.cdiv(outputs, block_n), triton.cdiv(inner, block_k)
    most = max(1, blocks // _LEAST_BLOCKS)
    if tiles * most < multiprocessors:
        # K is too short to be shared: more tiles instead
        if row_tile(rows) == 64 or inner > _WHOLE:
            return LinearLaunch(_NARROW, block_k, 1, warps, stages)
        return LinearLaunch(_NARROW, *whole(inner), over_k=True)
    if row_tile(rows) == 16 and _WHOLE < inner <= 2 * _WHOLE and tiles <= multiprocessors:
        # one wave, that reads what it needs at once
        block_k, _, warps = whole(inner)
        return LinearLaunch(block_n, block_k, 1, warps, 1, pdl=False, prefetch=False, over_k=True)
    if rows <= FEW and triton.cdiv(outputs, 8) <= multiprocessors:
        # sums that need not meet, of a K that warps share
        return LinearLaunch(8, 512, 1, 8, 5, prefetch=False, over_k=True)
    # wide rows of x weigh on every split, and so do sums that meet: where either is much, one
    # program a multiprocessor is enough
    enough = row_tile(rows) == 64 or 4 * tiles <= multiprocessors
    splits = max(1, min((1 if enough else 2) * multiprocessors // tiles, most))
    return LinearLaunch(block_n, block_k, splits, warps, stages, prefetch=False)


def fitting(launch: LinearLaunch, rows: int, item: int, weights: int = 1) -> LinearLaunch:
    """The launch with blocks and loads in flight that the shared memory holds.

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
    column = (row_tile(rows) + weights * launch.block_n) * item
    block_k = launch.block_k
    while block_k > 128 and column * block_k > SHARED:
        block_k //= 2
    stages = in_flight(launch.num_stages, column * block_k)
    return replace(launch, block_k=block_k, num_stages=stages)


def in_flight(wanted: int, load: int) -> int:
    """How many loads of so many bytes the shared memory holds: at most `wanted`, one at least."""
    return max(1, min(wanted, SHARED // load))


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
