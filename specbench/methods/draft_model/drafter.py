"""A small model that drafts, with KV of its own: all of it unrotated, a part of it at work."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.batch import Batch, slots_of
from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.engine.model import Attention
from specbench.engine.rope import rotate
from specbench.kernels.paged_attention.reference import write_kv
from specbench.methods.draft_model.attention import PrefillAttention, WorkingAttention
from specbench.methods.draft_model.loading import Reach, fit_vocabulary

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model import Transformer
    from specbench.engine.model_config import ModelConfig


class Drafter:
    """The model's KV for every row of an engine, and its forwards.

    `cache` has the pages of the engine's own cache under the same numbers, so that block tables
    and slots serve both; its keys are not rotated. `working` holds the entries that drafts read, at
    positions counted from 0 without gaps, so that a model reaches a context far beyond its own.

    Parameters
    ----------
    engine : Engine
        The target's.
    model : Transformer
    reach : Reach

    Attributes
    ----------
    filled : Tensor
        int64 `[R]`, committed tokens whose KV is in `cache`.
    length : Tensor
        int64 `[R]`, entries of `working` before the drafts.
    gathered : Tensor
        int64 `[R]`, of them those that were gathered.
    """

    def __init__(self, engine: "Engine", model: "Transformer", reach: Reach) -> None:
        rows, device = engine.batch.rows, engine.device
        self.engine, self.model, self.reach = engine, model, reach
        self.scale = model.config.head_dim**-0.5
        self.cache = self._full_cache()
        pages = pages_for(reach.working)
        self.working = KVCache(model.config, rows * pages, engine.dtype, device)
        self.table = 1 + torch.arange(rows * pages, device=device).view(rows, pages)
        self.filled = torch.zeros(rows, dtype=torch.int64, device=device)
        self.length, self.gathered = torch.zeros_like(self.filled), torch.zeros_like(self.filled)
        self.compute = engine.compute.beside(model, self.working)
        # position 0 leaves a head as it is but for the attention factor of some scalings
        factor = model.cos[0, 0]
        self.cos, self.sin = model.cos / factor, model.signed_sin / factor

    @staticmethod
    def memory_bytes(
        config: "ModelConfig", rows: int, entries: int, reach: Reach, dtype: torch.dtype
    ) -> int:
        """Weights, both caches, tables, and what a rebuild or a prefill chunk holds."""
        slots = (rows * pages_for(entries) + 1) * PAGE_SIZE
        working = (rows * pages_for(reach.working) + 1) * PAGE_SIZE
        token = config.kv_bytes_per_token(dtype)
        # entries gathered, then rotated in float32, a layer at a time; places of all positions
        layer = token // config.num_layers
        moved = rows * reach.working * (layer + layer * 4 * 4 // dtype.itemsize)
        logits = config.num_heads * min(reach.prefill_chunk, entries) * reach.prompt * 4
        prefill = reach.prompt * layer * 6 + logits
        tables = 4 * reach.positions * config.head_dim * 4
        places = rows * entries * 8 * 4
        weights = config.weight_bytes(dtype)
        return weights + (slots + working) * token + max(moved, prefill) + tables + places

    def prefill(self, row: int, batch: Batch, chunk: int) -> None:
        """The prompt of a request that took `row`."""
        length = int(batch.lengths[row])
        table = batch.block_table[row : row + 1]
        for begin in range(0, length, chunk):
            end = min(begin + chunk, length)
            first = max(begin - self.reach.look_back, 0)
            tokens = batch.history[row : row + 1, begin:end]
            slots = slots_of(table, torch.arange(first, end, device=tokens.device)[None])
            self._hidden(tokens, torch.zeros_like(tokens), PrefillAttention(self, slots))
        self.filled[row] = length

    def gather(self, kept: Tensor) -> None:
        """Make the working KV of the entries `kept`, bool `[R, L]` by position, in order.

        Of a row that keeps more than the working KV holds, the last are left out; entries that the
        drafter has not seen yet must not be kept.
        """
        batch = self.engine.batch
        width = self.reach.working
        rank = kept.cumsum(1) - 1
        place = torch.where(kept & (rank < width), rank, width)
        position = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
        ordered = position.new_zeros(len(kept), width + 1).scatter_(1, place, position)[:, :width]
        compact = torch.arange(width, device=kept.device)
        self.gathered.copy_(kept.sum(1).clamp(max=width))
        self.again()
        counted = compact < self.gathered[:, None]
        source = batch.slots(ordered, counted).clamp(min=0)
        target = torch.where(counted, slots_of(self.table, compact.expand_as(ordered)), -1)
        page, offset = source // PAGE_SIZE, source % PAGE_SIZE
        for layer in range(self.model.config.num_layers):
            old, new = self.cache.layer(layer), self.working.layer(layer)
            write_kv(new[0], self.turned(old[0][page, offset], compact), target)
            write_kv(new[1], old[1][page, offset], target)

    def again(self) -> None:
        """Begin with what was gathered last: what remains of an iteration that does not choose."""
        self.length.copy_(self.gathered)

    def catch_up(self, most: int) -> Tensor:
        """Feed the committed tokens that the drafter has not seen; logits `[R, V]` of the last.

        Parameters
        ----------
        most : int
            Tokens that one iteration commits, at most.
        """
        batch = self.engine.batch
        offset = torch.arange(most, device=self.filled.device)
        count = (batch.lengths + 1 - self.filled) * batch.active
        position = self.filled[:, None] + offset
        valid = offset < count[:, None]
        tokens = batch.history.gather(1, position.clamp(max=batch.history.shape[1] - 1))
        hidden = self._forward(
            tokens,
            self.length[:, None] + offset,
            torch.where(valid, self.length[:, None] + offset, -1),
            (self.length + count) * batch.active,
            count,
            kept=batch.slots(position, valid),
        )
        self.filled.copy_(torch.where(batch.active, batch.lengths + 1, self.filled))
        self.length += count
        last = (count - 1).clamp(min=0)
        return self._logits(hidden[torch.arange(len(last), device=last.device), last])

    def chain(self, tokens: Tensor, step: int) -> Tensor:
        """Logits `[R, V]` after the draft `tokens` `[R]`, the `step`-th from 0."""
        place = (self.length + step)[:, None]
        active = self.engine.batch.active
        slots = torch.where(active[:, None], place, -1)
        lens = (self.length + step + 1) * active
        return self._logits(self._forward(tokens[:, None], place, slots, lens, active.long())[:, 0])

    def level(self, tokens: Tensor, depth: int, mask: Tensor) -> Tensor:
        """Logits `[R, n, V]` of a tree's nodes at `depth`, from 1, each level of equal size.

        Parameters
        ----------
        tokens : Tensor
            int64 `[R, n]`.
        depth : int
        mask : Tensor
            bool `[R, n, depth * n]`: of the nodes of all levels so far, a node's ancestors and it.
        """
        rows, nodes = tokens.shape
        active = self.engine.batch.active
        before = self.length + (depth - 1) * nodes
        place = before[:, None] + torch.arange(nodes, device=tokens.device)
        hidden = self._forward(
            tokens,
            (self.length + depth - 1)[:, None].expand(rows, nodes),
            torch.where(active[:, None], place, -1),
            (before + nodes) * active,
            nodes * active.long(),
            mask=mask,
        )
        return self._logits(hidden)

    def _full_cache(self) -> KVCache:
        engine = self.engine
        return KVCache(self.model.config, engine.cache.num_pages, engine.dtype, engine.device)

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        """Heads `[..., heads, head_dim]` as they stand at `position` `[...]` of the working KV."""
        return rotate(x, *self.tables(position))

    def tables(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of positions, each `[..., head_dim]`."""
        position = position.clamp(0, len(self.cos) - 1)
        return self.cos[position], self.sin[position]

    def _forward(
        self,
        tokens: Tensor,
        position: Tensor,
        place: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        mask: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        slots = torch.where(place >= 0, slots_of(self.table, place.clamp(min=0)), -1)
        attention = WorkingAttention(self, position, slots, kv_lens, q_lens, mask, kept)
        return self._hidden(tokens, self._rotary(position), attention)

    def _rotary(self, position: Tensor) -> Tensor:
        """What the model rotates by, for tokens at `position` of the working KV: nothing."""
        return torch.zeros_like(position)

    def _hidden(self, tokens: Tensor, rotary: Tensor, attention: Attention) -> Tensor:
        # tokens that only the target has are as good as any
        return self.model(tokens.clamp(max=self.model.config.vocab_size - 1), rotary, attention)

    def _logits(self, hidden: Tensor) -> Tensor:
        return fit_vocabulary(self.model.logits(hidden), self.engine.config.vocab_size)
