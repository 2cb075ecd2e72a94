"""How the attention pass is launched: one table of tunable numbers."""

from dataclasses import dataclass

import torch

# packed rows (query rows times the heads of a group) that one tile can hold
ROW_TILES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Launch:
    """Tunable numbers of one launch; none of them alters a result beyond rounding.

    Attributes
    ----------
    block_m : int
        Packed query rows a tile, a power of two from 16. More rows than that are several tiles,
        and the KV is read once for each.
    block_n : int
        Keys a tile, a power of two from 16; best a multiple of the page size.
    warps, stages : int
        Of a program, and of its load pipeline (``stages - 1`` tiles of K and V are in flight).
    programs : int
        Programs a multiprocessor. Each takes an equal share of the batch's key tiles, so that as
        many as can be resident at once make one even wave.
    min_tiles : int
        Fewest key tiles a program takes; bounds the partial results of short contexts.
    merge_bytes : int
        The last program to finish merges a group's partial results itself if it expects to read
        no more than this; otherwise a second kernel does, with a program a row.
    """

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 3
    programs: int = 2
    min_tiles: int = 4
    merge_bytes: int = 160 * 1024


# (head dim as a power of two, smallest of ROW_TILES that holds the rows, collecting) to Launch,
# where something other than the rule of `default_launch` is better
TUNED: dict[tuple[int, int, bool], Launch] = {}


def default_launch(head_dim: int, packed_rows: int, dtype: torch.dtype, collecting: bool) -> Launch:
    """The table's entry, or a rule: tiles of 16 KB of keys, as many as fit twice in 227 KB.

    Parameters
    ----------
    head_dim : int
    packed_rows : int
        Query rows times the query heads of a KV head.
    dtype : torch.dtype
    collecting : bool
        Whether scores are collected.
    """
    width = max(16, power_of_2(head_dim))
    rows = next((m for m in ROW_TILES if m >= packed_rows), ROW_TILES[-1])
    warps = 8 if rows == 128 else 4
    if dtype == torch.float32:
        # exact products run outside the tensor cores, with whole tiles in registers
        return Launch(min(rows, 32), 16, warps=4, stages=1)
    tuned = TUNED.get((width, rows, collecting))
    if tuned is not None:
        return tuned
    return Launch(rows, min(128, max(16, 8192 // width)), warps=warps, stages=4 if rows < 64 else 3)


def power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def multiprocessors(device: torch.device | str) -> int:
    """Streaming multiprocessors of a CUDA device; 1 elsewhere."""
    if torch.device(device).type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
