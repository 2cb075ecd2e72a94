"""Drafts that read the pages whose keys may match the query best, chosen anew at every step."""

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.forward import FullAttention
from specbench.engine.kv_cache import PAGE_SIZE, pages_for
from specbench.kernels.page_bounds.reference import page_scores, update_bounds
from specbench.kernels.paged_attention.reference import write_kv
from specbench.kernels.selection.reference import select
from specbench.kernels.sparse_attention.reference import sparse_attention
from specbench.methods.base import Draft
from specbench.methods.magicdec.method import MagicDec, MagicDecParameters
from specbench.methods.self_speculation import draft_chain

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class QuestParameters(MagicDecParameters):
    """Settings of the variant `quest`."""

    variant: Literal["quest"] = "quest"
    dense_layers: int = Field(2, ge=0, description="First layers in which drafts read everything.")

    def least(self) -> tuple[int, str]:
        """One page."""
        return PAGE_SIZE, f"a page of {PAGE_SIZE} entries is the least that can be kept"


class Quest(MagicDec):
    """Pages of 16 entries, ranked for the query of each layer, KV head and draft step.

    A page's score is the largest logit that any key within the page's bounds could give. Complete
    pages are ranked and ``budget // 16`` of them are read, beside every token after them. Bounds
    are those of committed keys: a draft's key never enters them.

    Source: Tang et al., "Quest", ICML 2024; the mean over a group's heads gives one list a KV head.
    """

    summary = "self-speculation; drafts read the best pages, chosen anew at every draft step"
    parameters_type = QuestParameters
    # its attention is the reference's, which reads lengths on the host
    capturable = False
    parameters: QuestParameters

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """The bounds, and what updating them or scoring one layer's pages holds for a moment."""
        width, pages = model.num_kv_heads * model.head_dim, pages_for(max_len)
        bounds = 2 * model.num_layers * (rows * pages + 1) * width * dtype.itemsize
        # a page's keys and their masked copy, places and masks of its entries, its new bounds
        page = PAGE_SIZE * (2 * width * dtype.itemsize + 16) + 2 * width * dtype.itemsize
        update = page * max(pages, model.num_layers * rows * self._touched())
        step = 3 * rows * pages * width * max(dtype.itemsize, 4)
        slots = rows * model.num_kv_heads * self._width(max_len) * PAGE_SIZE * 8 * 6
        return bounds + max(update, step + slots)

    def bind(self, engine: "Engine") -> None:
        """Allocate the bounds, each `[layers, pages, Hkv, D]` by the cache's page."""
        super().bind(engine)
        self.width = self._width(engine.max_len)
        keys = engine.cache.keys
        self.page_min, self.page_max = (keys.new_zeros(keys[:, :, 0].shape) for _ in range(2))
        # entries that the bounds cover
        self.bounded = torch.zeros(engine.batch.rows, dtype=torch.int64, device=engine.device)

    def admit(self, row: int, batch: Batch) -> None:
        """Bounds of the prompt's pages."""
        if self.gamma == 0:
            return
        one = slice(row, row + 1)
        pages = torch.arange(batch.block_table.shape[1], device=self.bounded.device)[None]
        for layer in range(len(self.page_min)):
            # a layer at a time, so that no copy of the whole prompt's keys is made
            self._bound(batch, one, pages, slice(layer, layer + 1))
        self.bounded[one] = batch.lengths[one]

    def observe(self, batch: Batch) -> None:
        """Bounds of the pages that the committed tokens fell into."""
        if self.gamma == 0:
            return
        touched = torch.arange(self._touched(), device=self.bounded.device)
        pages = (self.bounded // PAGE_SIZE)[:, None] + touched
        self._bound(batch, slice(None), pages, slice(None))
        self.bounded.copy_(batch.lengths)

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one forward each."""
        if self.gamma == 0:
            return None
        return draft_chain(
            self.engine,
            self.gamma,
            lambda position, drafting, step: QuestAttention(self, batch, position, drafting),
        )

    def _bound(self, batch: Batch, rows: slice, pages: Tensor, layers: slice) -> None:
        update_bounds(
            self.engine.cache.keys[layers],
            batch.block_table[rows],
            pages,
            batch.lengths[rows],
            self.page_min[layers],
            self.page_max[layers],
        )

    def _touched(self) -> int:
        """Pages that the tokens of one iteration can fall into."""
        return (self.gamma + PAGE_SIZE - 1) // PAGE_SIZE + 1

    def _keep_pages(self, length: Tensor) -> Tensor:
        """Pages kept of a context of `length` entries."""
        return (self._keep(length) // PAGE_SIZE).clamp(min=1)

    def _width(self, max_len: int) -> int:
        """Pages kept of the longest context."""
        return int(self._keep_pages(torch.tensor(max_len)))


class QuestAttention:
    """Writes one token's KV, ranks the pages for its query, and attends over the best.

    Parameters
    ----------
    method : Quest
    batch : Batch
    position, drafting : Tensor
        `[R, 1]`: where the token stands, and whether the row drafts.
    """

    def __init__(self, method: Quest, batch: Batch, position: Tensor, drafting: Tensor) -> None:
        engine = method.engine
        self.method, self.engine, self.batch = method, engine, batch
        self.slots = batch.slots(position, drafting)
        self.complete = batch.lengths // PAGE_SIZE * batch.active
        self.keep = method._keep_pages(batch.lengths)
        self.offset = torch.arange(PAGE_SIZE, device=position.device)
        # the incomplete page, and what is drafted
        tail = torch.arange(PAGE_SIZE - 1 + method.gamma, device=position.device)
        reach = (self.complete * PAGE_SIZE)[:, None] + tail
        self.tail = batch.slots(reach, (reach <= position) & drafting)
        self.full = FullAttention(
            engine.cache,
            batch.block_table,
            self.slots,
            ((position + 1) * drafting)[:, 0],
            drafting[:, 0].long(),
            engine.scale,
            None,
            engine.phases,
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer < self.method.parameters.dense_layers:
            return self.full(layer, q, k, v)
        keys, values = self.engine.cache.layer(layer)
        write_kv(keys, k, self.slots)
        write_kv(values, v, self.slots)
        with self.engine.phases("selection"):
            selected = self._select(layer, q)
        return sparse_attention(q, keys, values, selected, self.tail, self.engine.scale)

    def _select(self, layer: int, q: Tensor) -> Tensor:
        """Slots `[R, Hkv, K]` of the best pages."""
        table = self.batch.block_table
        bounds = self.method.page_min[layer], self.method.page_max[layer]
        scores = page_scores(q, *bounds, table)
        best = select(scores[None], self.complete, self.keep, self.method.width)[0]
        rows, heads, width = best.shape
        page = table.gather(1, best.clamp(min=0).view(rows, -1)).view(rows, heads, width, 1)
        slots = torch.where(best[..., None] >= 0, page * PAGE_SIZE + self.offset, -1)
        return slots.view(rows, heads, -1)
