"""Drafts that read what the prompt's last queries attended to."""

from typing import TYPE_CHECKING, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from specbench.engine.batch import Batch, slots_of_sets
from specbench.engine.forward import ScoreCollector
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.selection.reference import select
from specbench.methods.base import Draft
from specbench.methods.magicdec.method import MagicDec, MagicDecParameters
from specbench.methods.self_speculation import draft_sparsely

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class SnapKVParameters(MagicDecParameters):
    """Settings of the variant `snapkv`."""

    variant: Literal["snapkv"] = "snapkv"
    window: int = Field(32, ge=1, description="Last prompt tokens, which rank and are kept.")
    pool: int = Field(5, ge=1, description="Neighbouring entries whose scores are averaged; odd.")

    def least(self) -> tuple[int, str]:
        """One more than the window."""
        return self.window + 1, f"the window ({self.window}) would leave nothing to select"

    @model_validator(mode="after")
    def _pool_has_a_middle(self) -> Self:
        if self.pool % 2 == 0:
            raise ValueError(f"pool ({self.pool}) must be odd: an entry and as many on each side")
        return self


class SnapKV(MagicDec):
    """A set for each layer and KV head, selected once, after the prefill.

    The prompt's last `window` queries rank what lies before them: softmax weights, summed over the
    queries and the heads of a group, averaged over `pool` neighbours. Drafts read the best
    ``budget - window`` entries, the window itself, and every token after the prompt. The weights
    are of scaled logits, as in SnapKV's paper; MagicDec's release leaves the scale out.

    Source: Li et al., "SnapKV", NeurIPS 2024, as used by MagicDec.
    """

    summary = "self-speculation; drafts read what the prompt's last queries attended to"
    parameters_type = SnapKVParameters
    drafts_with_target = True
    parameters: SnapKVParameters

    @property
    def prompt_tail(self) -> int:
        """The window, whose queries rank."""
        return self.parameters.window

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Scores of one prompt, the sets, what one selection holds, and the slots behind."""
        heads, width = model.num_layers * model.num_kv_heads, self._width(max_len)
        # float32: the scores, their masked, pooled and ranked copies
        scores = heads * max_len * 4 * 5
        chosen = heads * width * (8 * rows + 4 + 7 * 8)
        return scores + chosen + rows * max_len * 8 * (4 + self.gamma)

    def bind(self, engine: "Engine") -> None:
        """Allocate scores `[layers, 1, Hkv, L]` and selected slots `[layers, R, Hkv, K]`."""
        super().bind(engine)
        config, rows = engine.config, engine.batch.rows
        heads, self.width = config.num_kv_heads, self._width(engine.max_len)
        self.scores = torch.zeros(config.num_layers, 1, heads, engine.max_len, device=engine.device)
        shape = config.num_layers, rows, heads, self.width
        self.selected = torch.full(shape, -1, device=engine.device)
        # where the window begins, from which on drafts read everything
        self.start = torch.zeros(rows, dtype=torch.int64, device=engine.device)
        reach = min(self.parameters.window + engine.max_new_tokens, engine.max_len)
        self.offset = torch.arange(reach, device=engine.device)

    def prefill_collector(
        self, row: int, begin: int, end: int, length: int
    ) -> ScoreCollector | None:
        """Scores of what lies before the window, from those of its queries that are in the chunk.

        A query sees no later chunk, so that its weights are complete in its own.
        """
        first = self._first(length)
        if self.gamma == 0 or first == 0 or end <= first:
            return None
        collect = Collect("weight", "last", last=end - max(begin, first), add=begin > first)
        return ScoreCollector(collect, self.scores, torch.tensor([first], device=self.start.device))

    def admit(self, row: int, batch: Batch) -> None:
        """Select, once for the request's life."""
        if self.gamma == 0:
            return
        one = slice(row, row + 1)
        length = batch.lengths[one]
        first = (length - self.parameters.window).clamp(min=0)
        self.start[one] = first
        keep = self._keep(length) - (length - first)
        best = select(self._pooled(first), first, keep, self.width)
        self.selected[:, one] = slots_of_sets(batch.block_table[one], best)

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one sparse forward each."""
        if self.gamma == 0:
            return None
        reach = self.start[:, None] + self.offset
        return draft_sparsely(self.engine, self.gamma, self.selected, reach)

    def _pooled(self, first: Tensor) -> Tensor:
        """Scores of the entries before `first` `[1]`, averaged with their neighbours."""
        pool = self.parameters.pool
        before = torch.arange(self.scores.shape[-1], device=first.device) < first
        # what is not ranked counts as zero, also past both ends
        scores = self.scores[:, 0].masked_fill(~before, 0)
        return F.avg_pool1d(scores, pool, stride=1, padding=pool // 2)[:, None]

    def _first(self, length: int) -> int:
        """Where the window of a prompt begins."""
        return max(length - self.parameters.window, 0)

    def _width(self, max_len: int) -> int:
        """Entries selected from the longest prompt."""
        return self._most(max_len) - min(self.parameters.window, max_len)
