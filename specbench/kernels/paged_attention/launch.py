"""How the attention pass is launched: one table of tunable numbers."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

# packed rows (query rows times the heads of a group) that one tile can hold
ROW_TILES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Launch:
    """Tunable numbers of a launch; none alters a result beyond rounding.

    Attributes
    ----------
    block_m : int
        Packed query rows a tile, a power of two from 16. More rows than that make several tiles,
        and the KV is read once for each.
    block_n : int
        Keys a tile, a power of two from 16; best a multiple of the page size.
    warps, stages : int
        Of a program, and of its load pipeline: ``stages - 1`` tiles of K and V are in flight.
    programs : int
        Programs a multiprocessor. Each takes an equal share of the batch's key tiles, so as many
        as can be resident make one even wave; more even out processors of unequal speed.
    min_tiles : int
        Fewest key tiles a program takes: bounds the partial results of short contexts.
    merge_bytes : int
        Where the partial results of a job are expected to be no more than this, in float32, the
        last of its programs merges them; otherwise a second kernel does.
    votes : {"weights", "probe", "turned"}
        What the scores of one pass are made of: the weights that the softmax has, rescaled and
        summed over rows; a product of the collected rows with the keys; or that product with keys
        as rows. Logits always have a product of their own, and several tiles of rows, or more
        voters than a product takes, are always summed. For the first and the last row "weights"
        is for tiles of up to 32 rows, whose columns are one warp's each.
    hold : int
        Key tiles whose scores are stored together, a power of two.
    store : str
        Cache operator of these stores: "", ".cs" (evicted first), ".cg" or ".wb".
    partials : {"", "keep", "discard"}
        What becomes of partial results in L2, of which nothing is needed once they are merged:
        they are written to memory when keys and values take their place; kept for the next call,
        which overwrites them ("keep": evicted last); or dropped when they have been merged.
    narrow : bool
        Partial results of queries of 16 bits are kept in float16: half of what is written, at an
        eighth of the rounding of a bfloat16 output. Values beyond 65,504 become infinite.
    """

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 4
    programs: int = 2
    min_tiles: int = 4
    merge_bytes: int = 0
    votes: Literal["weights", "probe", "turned"] = "weights"
    hold: int = 1
    store: Literal["", ".cs", ".cg", ".wb"] = ".cs"
    partials: Literal["", "keep", "discard"] = ""
    narrow: bool = False


# (head dim as a power of two, entry of ROW_TILES, collecting): measured to be better than the rule
TUNED: dict[tuple[int, int, bool], Launch] = {}


# keys of a multiprocessor, of all requests and KV heads, below which a call is short
SHORT = 8192


def default_launch(
    head_dim: int,
    packed_rows: int,
    dtype: torch.dtype,
    collecting: bool,
    keys: int = SHORT,
    all_rows: bool = False,
) -> Launch:
    """The entry of `TUNED`, or a rule that fits an H200's 227 KB and 65,536 registers.

    The rule takes 16 KB of keys a tile and the smallest tile of rows that holds all, up to 128.
    Two programs of 4 warps, or one of 8, then fill a multiprocessor.

    Parameters
    ----------
    head_dim : int
    packed_rows : int
        Query rows times the query heads of a KV head.
    dtype : torch.dtype
    collecting : bool
        Whether scores are collected.
    keys : int
        Of a multiprocessor, of all requests and KV heads together.
    all_rows : bool
        Whether every row is collected: then weights are summed, whatever the tile of rows.
    """
    if all_rows:
        launch = default_launch(head_dim, packed_rows, dtype, collecting, keys)
        # a sum over all rows leaves with its tile
        hold = 1 if launch.block_m <= 32 else launch.hold
        return replace(launch, votes="weights", hold=hold)
    width = max(16, power_of_2(head_dim))
    rows = next((m for m in ROW_TILES if m >= packed_rows), ROW_TILES[-1])
    if dtype == torch.float32:
        # exact products run outside the tensor cores, with the tiles in registers
        return Launch(min(rows, 32), 16, stages=1)
    tuned = TUNED.get((width, rows, collecting))
    if tuned is not None:
        return tuned
    block_n = min(128, max(16, 8192 // width))
    if rows == 64 and collecting and keys < SHORT:
        # 128 keys and their scores spill registers, whose filling a short share does not hide
        block_n = min(block_n, 64)
    # 256 keys are little work next to starting a program
    min_tiles = max(1, 256 // block_n)
    if packed_rows > ROW_TILES[-1] and not collecting:
        # a tree's nodes: bound by products, which two programs of half the rows overlap
        block_n, stages = (min(128, 8192 // width), 3) if width <= 64 else (4096 // width, 4)
        block_n = max(16, block_n)
        return Launch(64, block_n, stages=stages, min_tiles=min(4, 256 // block_n), narrow=True)
    if rows == 128:
        return Launch(
            rows, block_n, warps=8, programs=1, min_tiles=min_tiles, votes="probe", narrow=True
        )
    # 2 KB of scores at a time: memory turns from reading to writing less often
    hold = 512 // block_n
    if rows == 64:
        return Launch(
            rows,
            block_n,
            stages=3,
            # of a short call 128 are enough
            min_tiles=max(1, 128 // block_n) if keys < SHORT else min_tiles,
            merge_bytes=160 * 1024,
            votes="turned",
            # the scores of 128 keys fill a thread's registers, and leave with each tile
            hold=1 if block_n == 128 else hold // 2,
            # few partial results stay in L2 for the next call; many would be in its way
            partials="discard" if block_n == 128 else "keep",
            narrow=True,
        )
    return Launch(rows, block_n, min_tiles=min_tiles, hold=hold, partials="discard", narrow=True)


def power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
