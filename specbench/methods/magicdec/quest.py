"""Drafts that read the pages whose keys may match the query best, chosen anew at every step."""

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.batch import Batch, slots_of
from specbench.engine.forward import CachedAttention
from specbench.engine.kv_cache import PAGE_SIZE, pages_for
from specbench.kernels.page_bounds.reference import update_bounds
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
    parameters: QuestParameters

    def entries_read(self, length: int) -> int:
        """Of the complete pages of a prefix of `length` entries."""
        return min(self._width(length) * PAGE_SIZE, length)

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Bounds and pages, and what updating them or scoring one layer's holds for a moment."""
        width, pages = model.num_kv_heads * model.head_dim, pages_for(max_len)
        bounds = 2 * model.num_layers * (rows * pages + 1) * width * dtype.itemsize
        # a page's keys and their masked copy, places and masks of its entries, its new bounds
        page = PAGE_SIZE * (2 * width * dtype.itemsize + 16) + 2 * width * dtype.itemsize
        update = page * max(pages, model.num_layers * rows * self._touched())
        step = 3 * rows * pages * width * max(dtype.itemsize, 4)
        chosen = rows * model.num_kv_heads * self._width(max_len)
        return bounds + chosen * model.num_layers * 4 + max(update, step + chosen * 8 * 6)

    def page_bytes(self, model: "ModelConfig", dtype: torch.dtype) -> int:
        """The bounds of its keys."""
        return 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize

    def bind(self, engine: "Engine") -> None:
        """Allocate bounds `[layers, pages, Hkv, D]` by the cache's page, and what is chosen.

        Of every layer but the first ones that are the pages `[layers, R, Hkv, K]` of its last
        draft step.
        """
        super().bind(engine)
        config, rows = engine.config, engine.batch.rows
        self.dense = min(self.parameters.dense_layers, config.num_layers)
        shape = config.num_layers - self.dense, rows, config.num_kv_heads
        width = self._width(engine.max_len)
        self.pages = torch.full((*shape, width), -1, dtype=torch.int32, device=engine.device)
        keys = engine.cache.keys
        self.page_min, self.page_max = (keys.new_zeros(keys[:, :, 0].shape) for _ in range(2))
        # entries that the bounds cover
        self.bounded = torch.zeros(rows, dtype=torch.int64, device=engine.device)

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
        attentions = self._attentions(batch)
        return draft_chain(self.engine, self.gamma, lambda _p, _d, step: attentions[step])

    def _attentions(self, batch: Batch) -> "list[QuestAttention]":
        """What attends in each draft step."""
        gamma, position = self.gamma, batch.lengths[:, None]
        complete = batch.lengths // PAGE_SIZE * batch.active
        keep = self._keep_pages(batch.lengths)
        offset = torch.arange(PAGE_SIZE - 1 + gamma, device=complete.device)
        steps = offset[:gamma]
        drafting = steps < batch.allowed(gamma)[:, None]
        own = batch.slots(position + steps, drafting).T.contiguous()[..., None]
        # `[gamma, R, T]`: the incomplete page, and what is drafted, up to a step's own token
        reach = (complete * PAGE_SIZE)[:, None] + offset
        read = (reach <= position + steps[:, None, None]) & drafting.T[..., None]
        tails = torch.where(read, slots_of(batch.block_table, reach), -1)
        q_lens = drafting.T.contiguous().long()
        kv_lens = (batch.lengths + steps[:, None] + 1) * q_lens
        return [
            QuestAttention(self, batch, complete, keep, *each)
            for each in zip(own, tails, kv_lens, q_lens, strict=True)
        ]

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


class QuestAttention(CachedAttention):
    """Writes one token's KV, ranks the pages for its query, and attends over the best.

    Parameters
    ----------
    method : Quest
    batch : Batch
    complete, keep : Tensor
        int64 `[R]`, pages that are ranked, and how many of them are read.
    slots, tail : Tensor
        int64 `[R, 1]` and `[R, T]`: where the token's KV goes, and what is read behind the pages.
    kv_lens, q_lens : Tensor
        int64 `[R]`, what the first layers read: everything, for a row that drafts.
    """

    def __init__(
        self,
        method: Quest,
        batch: Batch,
        complete: Tensor,
        keep: Tensor,
        slots: Tensor,
        tail: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
    ) -> None:
        super().__init__(method.engine.cache, slots)
        self.method, self.engine, self.table = method, method.engine, batch.block_table
        self.complete, self.keep, self.tail = complete, keep, tail
        self.lengths = kv_lens, q_lens

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See `CachedAttention`."""
        engine, dense = self.engine, self.method.dense
        if layer < dense:
            return engine.compute.attend(layer, q, self.table, *self.lengths, engine.scale)
        chosen = self.method.pages[layer - dense]
        if not engine.frozen:
            with engine.phases("selection"):
                self._select(layer, q, chosen)
        return engine.compute.attend_sparsely(layer, q, chosen, self.tail, engine.scale, PAGE_SIZE)

    def _select(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Pages `[R, Hkv, K]` of the cache, the best first or not."""
        bounds = self.method.page_min[layer], self.method.page_max[layer]
        self.engine.compute.select_pages(q, *bounds, self.table, self.complete, self.keep, out)
