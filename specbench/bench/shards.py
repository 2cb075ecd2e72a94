"""A part of a plan, for another GPU or machine: `--shard I/N`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.errors import UsageError

Cell = tuple[str, str]


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` parts, counted from 1."""

    number: int
    count: int

    @property
    def folder(self) -> str:
        """The name of its folder within the output folder that all parts share."""
        return f"shard-{self.number}-of-{self.count}"


def parse_shard(text: str) -> Shard:
    """The part that ``I/N`` names.

    Raises
    ------
    UsageError
        It is no such text, or I is not between 1 and N.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    shard = Shard(int(found[1]), int(found[2])) if found else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise UsageError(f"--shard {text!r}: give I/N with I from 1 to N, such as 2/4")
    return shard


def shard_cells(
    datasets: list[str],
    arms: list[str],
    baselines: list[str],
    shard: Shard,
    only: Sequence[Cell] | None = None,
) -> list[Cell]:
    """The (dataset, arm) pairs of one part.

    Every part has the baselines of its datasets beside its arms, since a ratio is only taken of
    arms that ran interleaved on one machine. Parts follow the order of the plan, so that few of
    them share a dataset and measure its baselines twice.

    Parameters
    ----------
    datasets, arms : list of str
        Of the whole plan.
    baselines : list of str
        Those of `arms` that others are compared with.
    shard : Shard
    only : sequence of (str, str), optional
        The pairs of the whole plan, where not every arm runs on every dataset.

    Raises
    ------
    UsageError
        There are fewer cells than parts.
    """
    shared = [arm for arm in arms if arm in baselines]
    own = [arm for arm in arms if arm not in baselines] or shared
    every = [(dataset, arm) for dataset in datasets for arm in own]
    cells = [cell for cell in every if only is None or cell in only]
    if shard.count > len(cells):
        raise UsageError(
            f"--shard {shard.number}/{shard.count}: the plan has {len(cells)} cells to share out; "
            f"use at most {len(cells)} parts"
        )
    begin, end = (place * len(cells) // shard.count for place in (shard.number - 1, shard.number))
    part = cells[begin:end]
    touched = dict.fromkeys(dataset for dataset, _ in part)
    return [
        (dataset, arm)
        for dataset in touched
        for arm in arms
        if (dataset, arm) in part or arm in shared
    ]
