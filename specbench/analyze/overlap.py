"""How alike the sets are that single rows of a verification would choose."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specbench.analyze.sources import collect_row
from specbench.engine.forward import ScoreCollector
from specbench.methods.base import Draft
from specbench.methods.vegas import Vegas

if TYPE_CHECKING:
    from specbench.engine.batch import Batch
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig

ALL_ROWS, ACCEPTED = "all", "accepted"
COLUMNS = ("rows", "distance", "pairs", "overlap", "low", "high", "chance")


class RowSets(Vegas):
    """Vegas that notes, after each verification, which set each row of it would choose alone.

    Attributes
    ----------
    shared : dict of str to Tensor
        float64 `[layers, gamma]` by kind of rows, sums of the overlap of pairs at distance 1 …
        gamma, mean over the heads' sets.
    pairs, chance : dict of str to Tensor
        float64 `[gamma]`, pairs of rows, and sums of the overlap that random sets would have.
    """

    capturable = False

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Those of Vegas, a row's scores, and the rows' sets: as they are, in order, compared."""
        sets = model.num_layers * rows * self._sets(model)
        entries = sets * self.entries_read(max_len)
        # int32 slots, twice, and int64 indices of the sorting; then places, found and flags
        held = (self.gamma + 1) * entries * (4 + 4 + 8) + entries * 32
        return super().memory_bytes(model, rows, max_len, dtype) + sets * max_len * 4 + held

    def bind(self, engine: "Engine") -> None:
        """Allocate the rows' scores and sets, and start the sums anew."""
        super().bind(engine)
        device, gamma = engine.device, self.gamma
        self.row_scores = torch.full_like(self.scores, -torch.inf)
        self.row_sets = self.selected.new_full((gamma + 1, *self.selected.shape), -1)
        self.chunk = torch.zeros(engine.batch.rows, gamma + 1, dtype=torch.int64, device=device)
        self.drafted = torch.zeros(engine.batch.rows, dtype=torch.int64, device=device)
        size = (engine.config.num_layers, gamma)
        kinds = ALL_ROWS, ACCEPTED
        self.shared = {k: torch.zeros(size, dtype=torch.float64, device=device) for k in kinds}
        self.pairs = {k: torch.zeros_like(self.shared[k][0]) for k in kinds}
        self.chance = {k: torch.zeros_like(self.shared[k][0]) for k in kinds}

    def draft(self, batch: "Batch") -> Draft | None:
        """Those of Vegas; the verification's rows are noted."""
        draft = super().draft(batch)
        assert draft is not None
        self.chunk.copy_(torch.cat([batch.tokens[:, None], draft.tokens], 1))
        self.drafted.copy_(batch.allowed(self.gamma))
        return draft

    def observe(self, batch: "Batch") -> None:
        """Compare the rows' sets, then select as Vegas does."""
        assert self.collect is not None
        collect = replace(self.collect, queries="last")
        running, keep = self.ranked > 0, self._keep(self.ranked)
        for row in range(self.gamma + 1):
            valid = running & (row <= self.drafted)
            position = (self.ranked - 1).clamp(min=0) + row
            collector = ScoreCollector(collect, self.row_scores, self.ranked)
            collect_row(self.engine, self.chunk[:, row], position, valid, collector)
            self.engine.compute.select_slots(
                self.row_scores, self.ranked, keep, batch, slice(None), self.row_sets[row]
            )
        accepted = batch.lengths - self.ranked
        last = {ALL_ROWS: self.drafted, ACCEPTED: torch.minimum(accepted, self.drafted)}
        overlaps = pair_overlaps(self.row_sets.sort(-1).values, keep)
        for kind, rows in last.items():
            shared, pairs = by_distance(overlaps, torch.where(running, rows, -1))
            self.shared[kind] += shared
            self.pairs[kind] += pairs.sum(-1)
            self.chance[kind] += (pairs * keep / self.ranked.clamp(min=1)).sum(-1)
        super().observe(batch)


def pair_overlaps(ordered: Tensor, keep: Tensor) -> Tensor:
    """The overlap of the sets of each two rows.

    Parameters
    ----------
    ordered : Tensor
        Integers `[rows, layers, R, S, K]`, ascending along K; -1 for none.
    keep : Tensor
        int64 `[R]`, entries of a set.

    Returns
    -------
    Tensor
        float64 `[layers, R, rows, rows]`: ``|A ∩ B| / keep`` of row i's set and row j's for i < j,
        mean over the S sets; 0 elsewhere.
    """
    rows, layers, requests = ordered.shape[:3]
    overlaps = keep.new_zeros(layers, requests, rows, rows, dtype=torch.float64)
    for first in range(rows):
        for second in range(first + 1, rows):
            common = intersections(ordered[first], ordered[second]).double().mean(-1)
            overlaps[..., first, second] = common / keep.clamp(min=1)
    return overlaps


def by_distance(overlaps: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the pairs of rows at each distance.

    Parameters
    ----------
    overlaps : Tensor
        `[layers, R, rows, rows]`, see `pair_overlaps`.
    last : Tensor
        int64 `[R]`, the last row of each request that counts; -1 for none.

    Returns
    -------
    shared : Tensor
        float64 `[layers, rows - 1]`, the overlaps at distance 1, 2, …
    pairs : Tensor
        float64 `[rows - 1, R]`, how many there are.
    """
    layers, requests, rows, _ = overlaps.shape
    shared = overlaps.new_zeros(layers, rows - 1)
    pairs = overlaps.new_zeros(rows - 1, requests)
    second = torch.arange(rows, device=last.device)
    for distance in range(1, rows):
        counts = second[distance:] <= last[:, None]
        along = overlaps.diagonal(distance, -2, -1)
        shared[:, distance - 1] = (along * counts).sum((1, 2))
        pairs[distance - 1] = counts.sum(1)
    return shared, pairs


def intersections(first: Tensor, second: Tensor) -> Tensor:
    """How many numbers of `first` `[..., K]` are in `second`, int64 `[...]`; both ascending.

    Each number stands once; -1 stands for none.
    """
    place = torch.searchsorted(second.contiguous(), first.contiguous())
    found = second.gather(-1, place.clamp(max=second.shape[-1] - 1)) == first
    return (found & (first >= 0)).sum(-1)


def overlap_rows(method: RowSets) -> list[dict[str, Any]]:
    """The rows of ``overlap.csv``; `low` and `high` are the lowest and highest layer's mean.

    A distance without pairs has None for its figures.
    """
    table = []
    for kind, pairs in method.pairs.items():
        for index, count in enumerate(pairs.tolist()):
            figures: Sequence[float | None] = [None] * 4
            if count:
                layers = (method.shared[kind][:, index] / count).tolist()
                chance = method.chance[kind][index].item() / count
                figures = sum(layers) / len(layers), min(layers), max(layers), chance
            values = kind, index + 1, int(count), *figures
            table.append(dict(zip(COLUMNS, values, strict=True)))
    return table
