"""The engine's forwards in plain torch: the truth, and the CPU's path."""

from functools import cached_property

import torch
from torch import Tensor

from specbench.engine.batch import Batch, slots_of_sets
from specbench.engine.compute import ONE_ROW, Compute
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.ties import first_of_equal_rows
from specbench.kernels.page_bounds.reference import page_scores
from specbench.kernels.paged_attention.reference import collect_scores, paged_attention
from specbench.kernels.selection import reference as selection
from specbench.kernels.sparse_attention.reference import sparse_attention
from specbench.kernels.tree_attention.reference import row_weights, tree_attention


class ReferenceCompute(Compute):
    """Plain torch on any device: the truth, and the CPU's path."""

    capturable = False

    @property
    def name(self) -> str:
        """For the records."""
        return "reference"

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `Compute`."""
        out: Tensor = self.model(tokens, positions, attention)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute`; tokens of equal rows of the head tie."""
        logits = super().logits(hidden)
        return logits if self._first is None else logits.index_select(-1, self._first)

    @cached_property
    def _first(self) -> Tensor | None:
        head = self.model.head
        return first_of_equal_rows(head) if head.device.type == "cpu" else None

    def attend(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        mask: Tensor | None = None,
    ) -> Tensor:
        """See `Compute`."""
        place = *self.cache.layer(layer), block_table, kv_lens, q_lens
        if mask is None:
            return paged_attention(q, *place, scale)
        return tree_attention(q, *place, mask, scale)[0]

    def attend_sparsely(
        self, layer: int, q: Tensor, selected: Tensor, tail: Tensor, scale: float, unit: int = 1
    ) -> Tensor:
        """See `Compute`."""
        return sparse_attention(q, *self.cache.layer(layer), selected, tail, scale, unit)

    def select_pages(
        self,
        q: Tensor,
        page_min: Tensor,
        page_max: Tensor,
        block_table: Tensor,
        complete: Tensor,
        keep: Tensor,
        out: Tensor,
    ) -> None:
        """See `Compute`."""
        scores = page_scores(q, page_min, page_max, block_table)
        best = selection.select(scores[None], complete, keep, out.shape[-1])[0]
        page = block_table.gather(1, best.clamp(min=0).flatten(1)).view_as(best)
        out.copy_(torch.where(best >= 0, page, -1))

    def weigh(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        scores: Tensor,
    ) -> None:
        """See `Compute`."""
        keys = self.cache.layer(layer)[0]
        place = block_table, kv_lens, q_lens, kv_lens
        collect_scores(q, keys, *place, scale, ONE_ROW, scores)

    def row_weights(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        mask: Tensor | None,
        scale: float,
        weights: Tensor,
    ) -> None:
        """See `Compute`."""
        keys = self.cache.layer(layer)[0]
        row_weights(q, keys, block_table, kv_lens, q_lens, mask, scale, weights)

    def beside(self, model: Transformer, cache: KVCache) -> "ReferenceCompute":
        """See `Compute`."""
        return ReferenceCompute(model, cache)

    def select_slots(
        self,
        scores: Tensor,
        ranked: Tensor,
        keep: Tensor,
        batch: Batch,
        rows: slice,
        out: Tensor,
        sinks: int = 0,
        window: int = 0,
    ) -> None:
        """See `Compute`."""
        best = selection.select(scores, ranked, keep, out.shape[-1], sinks, window)
        out.copy_(slots_of_sets(batch.block_table[rows], best))
