"""How the layers of a draft step are cut for one launch whose programs are all resident."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton

from specbench.kernels.launch import MOST_AHEAD, multiprocessors, row_tile
from specbench.kernels.linear.plan import FEW, LinearLaunch, in_flight, scratch_size, shares

# where the interpreter stands in for a device: fewer than tiles, so that programs take several
_INTERPRETED = 5
# K that warps share as one block held in registers, and blocks of a wider one
_WHOLE, _STREAMED = 2048, 256
# columns of the tiles of qkv and o
_NARROW = 16
# widest tail; gamma drafts read up to 2 gamma + 1 entries behind their list
MOST_TAIL = 128
# addresses of a layer: qkv, its bias, o, the MLP's norm, gate and up, down, the norm behind it, and
# the qkv that follows
COLUMNS = 8


class Shape(NamedTuple):
    """What the kernel knows of the model."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int


class Tiles(NamedTuple):
    """A product's cut: `tiles` of `block_n` columns times `splits` of `each` blocks of K.

    `held`: a program has at most one, which is read into registers before the barrier. `fetch`: the
    weight is fetched into L2 before its phase.
    """

    block_n: int
    block_k: int
    each: int
    splits: int
    tiles: int
    stages: int
    sharers: int
    held: bool
    fetch: bool


class Lists(NamedTuple):
    """The attention's cut: entries a turn, depth of the pipeline, and widths as powers of two.

    Of `merged` parts at a time a thread holds its own elements. `held` is as for `Tiles`.
    """

    tile: int
    stages: int
    tail: int
    dim_width: int
    group_width: int
    height: int
    split_width: int
    merged: int
    held: bool


@dataclass(frozen=True)
class StepLaunch:
    """The tiles of a launch; any choice gives the same result up to rounding.

    Attributes
    ----------
    per_multiprocessor : int
        Programs for each multiprocessor, all of them resident.
    num_warps : int
    entries : int
        Of the attention, in one turn of a program.
    gate_up : tuple of int
        Pairs of columns, columns of K, loads in flight.
    down : tuple of int
        Columns, columns of K, loads in flight.
    ahead : bool
        Fetch weights and entries into L2 before the barrier in front of their phase.
    cooperative : bool
        Let the driver see to it that all programs are resident. Without, they are only where one
        program a multiprocessor is launched and nothing else runs on the device.
    """

    per_multiprocessor: int = 1
    num_warps: int = 8
    entries: int = 256
    gate_up: tuple[int, int, int] = (64, 64, 8)
    down: tuple[int, int, int] = (64, 64, 8)
    ahead: bool = True
    cooperative: bool = True


def choose(rows: int, dim: int) -> StepLaunch:
    """By analysis: one program a multiprocessor, each with one tile of every product."""
    launch = StepLaunch(entries=256 if dim <= 64 else 128)
    if rows <= FEW:
        # each program may read all of x, and has sums that need not meet
        return replace(launch, down=(8, 512, 5))
    if row_tile(rows) == 16:
        return launch
    # parts of sums are as tall as the row tile: fewer of them
    return replace(launch, down=(32, 128, 6))


@dataclass(frozen=True)
class StepPlan:
    """A launch's programs and the cut of each of its phases.

    Attributes
    ----------
    programs : int
    splits : int
        Of each list of entries.
    floats, counters : int
        Scratch of the products' sums.
    """

    programs: int
    rows: int
    splits: int
    qkv: Tiles
    o: Tiles
    gate_up: Tiles
    down: Tiles
    lists: Lists
    floats: int
    counters: int


def plan(
    shape: Shape,
    requests: int,
    width: int,
    tail: int,
    launch: StepLaunch,
    device: torch.device | str,
    item: int,
) -> StepPlan:
    """The cut for `requests` rows whose lists have `width` entries, elements of `item` bytes."""
    sms = multiprocessors(device)
    programs = sms * launch.per_multiprocessor if sms > 1 else _INTERPRETED
    height, warps = row_tile(requests), launch.num_warps
    room = 1 if launch.per_multiprocessor == 1 else 2
    heads = shape.heads + 2 * shape.kv_heads

    def tiles(
        number: int, columns: int, cut: tuple[int, int, int], inner: int, splits: int
    ) -> Tiles:
        block_n, block_k, stages = cut
        # warps share K where a tile has no more instructions' results, 16 x 8, than there are warps
        few = height * columns <= 16 * 8 * warps and columns <= 8 * warps
        sharers = warps if few and block_k >= 16 * warps else 1
        each, splits = shares(inner, LinearLaunch(block_n, block_k, splits))
        load = (height + columns) * block_k * item * room
        held = each == 1 and sharers > 1 and number * splits <= programs
        size = number * columns * inner * item
        fetch = launch.ahead and inner * item % 16 == 0 and size <= MOST_AHEAD
        depth = in_flight(stages, load)
        return Tiles(block_n, block_k, each, splits, number, depth, sharers, held, fetch)

    def narrow(inner: int) -> tuple[int, int, int]:
        whole = max(16 * warps, triton.next_power_of_2(inner))
        if height == 16 and whole <= _WHOLE:
            return _NARROW, whole, 1
        return _NARROW, max(16 * warps, _STREAMED), 4

    attended = shape.heads * shape.dim
    halves = heads * triton.cdiv(shape.dim // 2, _NARROW // 2)
    qkv = tiles(halves, _NARROW, narrow(shape.hidden), shape.hidden, 1)
    number = triton.cdiv(shape.hidden, _NARROW)
    o = tiles(number, _NARROW, narrow(attended), attended, 1)
    pairs = launch.gate_up[0]
    number = triton.cdiv(shape.inner, pairs)
    gate_up = tiles(number, 2 * pairs, launch.gate_up, shape.hidden, 1)
    columns = launch.down[0]
    number = triton.cdiv(shape.hidden, columns)
    parts = max(1, programs // number)
    down = tiles(number, columns, launch.down, shape.inner, parts)
    floats, counters = scratch_size(
        height, shape.hidden, shape.inner, LinearLaunch(columns, launch.down[1], parts)
    )
    groups = requests * shape.kv_heads
    splits = max(1, min(programs // groups, triton.cdiv(width, launch.entries)))
    # where one turn takes a program's share, nothing is in flight behind it
    deep = 2 if splits * launch.entries >= width or launch.entries > 128 else 4
    dim_width = max(16, triton.next_power_of_2(shape.dim))
    group = triton.next_power_of_2(shape.heads // shape.kv_heads)
    split_width = triton.next_power_of_2(splits)
    lists = Lists(
        tile=launch.entries,
        stages=in_flight(deep, 2 * launch.entries * dim_width * item * room),
        tail=max(16, triton.next_power_of_2(tail)),
        dim_width=dim_width,
        group_width=group,
        height=max(16, group),
        split_width=split_width,
        merged=min(split_width, max(1, 2048 * warps // (group * dim_width))),
        held=groups * splits <= programs,
    )
    return StepPlan(
        programs,
        height,
        splits,
        qkv,
        o,
        gate_up,
        down,
        lists,
        floats,
        counters,
    )
