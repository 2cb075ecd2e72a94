"""What methods ask of the engine beside forwards, on the Triton kernels."""

import torch
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.compute import ONE_ROW, Compute
from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.model import Transformer
from specbench.engine.triton_attention import TritonAttention
from specbench.kernels.flash_attention import Peer
from specbench.kernels.page_bounds.triton import page_scores
from specbench.kernels.selection.triton import select
from specbench.kernels.selection.workspace import SelectionWorkspace
from specbench.kernels.tree_attention.triton import row_weights


class TritonDrafting(Compute):
    """Attention and choices of methods' drafts; `TritonCompute` adds the forwards.

    Parameters
    ----------
    model : Transformer
    cache : KVCache
    flash : Peer, optional
    flash_decode : bool
        As for `TritonAttention`.
    """

    capturable = True

    def __init__(
        self, model: Transformer, cache: KVCache, flash: Peer | None, flash_decode: bool
    ) -> None:
        super().__init__(model, cache)
        self.flash, self.flash_decode = flash, flash_decode
        self.device = cache.keys.device
        self._attention = TritonAttention(model, cache, flash, flash_decode)
        self._selection: dict[tuple[int, int, int], SelectionWorkspace] = {}

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
        rows, queries, heads, _ = q.shape
        length = block_table.shape[1] * PAGE_SIZE
        paged = self._attention.workspace(rows, queries, None, heads, length=length)
        caches = self.cache.layer(layer)
        return paged(q, *caches, block_table, kv_lens, q_lens, scale, tree_mask=mask)

    def attend_sparsely(
        self, layer: int, q: Tensor, selected: Tensor, tail: Tensor, scale: float, unit: int = 1
    ) -> Tensor:
        """See `Compute`."""
        return self._attention.sparsely(layer, q, selected, tail, scale, unit)

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
        scores = page_scores(q, page_min, page_max, block_table, complete)
        # where a page has one slot, slots are pages
        self._select(scores[None], complete, keep, block_table, 1, out[None])

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
        place = block_table, kv_lens, q_lens
        paged = self._attention.workspace(len(q), 1, ONE_ROW)
        paged(q, keys, None, *place, scale, ranked=kv_lens, scores=scores)

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
        place = block_table, kv_lens, q_lens
        length = block_table.shape[1] * PAGE_SIZE
        rows, queries = q.shape[:2]
        paged = self._attention.workspace(rows, queries, None, length=length)
        lse = torch.empty(q.shape[:3], device=q.device)
        paged(q, keys, keys, *place, scale, lse=lse, tree_mask=mask)
        row_weights(q, keys, *place, mask, scale, weights, lse)

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
        table = batch.block_table[rows]
        self._select(scores, ranked, keep, table, PAGE_SIZE, out, sinks, window)

    def _select(
        self,
        scores: Tensor,
        ranked: Tensor,
        keep: Tensor,
        block_table: Tensor,
        page_size: int,
        out: Tensor,
        sinks: int = 0,
        window: int = 0,
    ) -> None:
        layers, requests, sets, length = scores.shape
        width = out.shape[-1]
        key = layers * requests * sets, length, width
        if key not in self._selection:
            self._selection[key] = SelectionWorkspace(*key, self.device, dtype=scores.dtype)
        select(
            scores,
            ranked,
            keep,
            width,
            sinks,
            window,
            block_table=block_table,
            page_size=page_size,
            workspace=self._selection[key],
            out=out,
        )
