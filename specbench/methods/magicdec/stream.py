"""Drafts that read the first tokens and the most recent ones."""

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Positions
from specbench.engine.batch import Batch
from specbench.methods.base import Draft
from specbench.methods.magicdec.method import MagicDec, MagicDecParameters
from specbench.methods.magicdec.relative import RelativeAttention
from specbench.methods.self_speculation import draft_chain, draft_sparsely

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class StreamParameters(MagicDecParameters):
    """Settings of the variant `stream`."""

    variant: Literal["stream"] = "stream"
    sinks: int = Field(16, ge=0, description="First tokens that are always kept.")
    positions: Positions = Field(
        "absolute", description="The keys' own positions, or those without gaps (the paper)."
    )

    def least(self) -> tuple[int, str]:
        """One more than the sinks."""
        return self.sinks + 1, f"{self.sinks} sinks would leave no window"


class Stream(MagicDec):
    """Attention sinks and a recent window, which rolls on in every iteration.

    Of n committed entries, drafts read the first `sinks`, the last ``budget - sinks``, and what is
    drafted after them. The release's window stands still while it decodes. With the positions
    "cache-relative", the window follows upon the sinks, as in the paper.

    Source: Xiao et al., "StreamingLLM", ICLR 2024, as used by MagicDec.
    """

    summary = "self-speculation; drafts read the first tokens and a recent window"
    parameters_type = StreamParameters
    drafts_with_target = True
    parameters: StreamParameters

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Slots of a step, and what computing them holds for a moment."""
        return rows * self._most(max_len) * 8 * 8

    def bind(self, engine: "Engine") -> None:
        """Make the index of a set's entries, `[K]`, and their slots `[R, K]`."""
        super().bind(engine)
        width, rows = self._most(engine.max_len), engine.batch.rows
        self.index = torch.arange(width, device=engine.device)
        self.slots = torch.full((rows, width), -1, dtype=torch.int32, device=engine.device)

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one sparse forward each."""
        if self.gamma == 0:
            return None
        engine = self.engine
        sinks, skipped = self.parameters.sinks, batch.lengths - self._keep(batch.lengths)
        chosen = self.slots
        if not engine.frozen:
            with engine.phases("selection"):
                chosen.copy_(batch.slots(*self._chosen(batch)))
        # the same for all layers and heads
        selected = chosen[None, :, None].expand(engine.config.num_layers, -1, -1, -1)
        reach = batch.lengths[:, None] + torch.arange(self.gamma, device=engine.device)
        if self.parameters.positions == "absolute":
            return draft_sparsely(engine, self.gamma, selected, reach)

        def attention(position: Tensor, drafting: Tensor, step: int) -> RelativeAttention:
            tail = batch.slots(reach, (reach <= position) & drafting)
            window = torch.cat([chosen[:, sinks:], tail], 1)
            slots = batch.slots(position, drafting)
            return RelativeAttention(engine, chosen[:, :sinks], window, slots, skipped)

        return draft_chain(engine, self.gamma, attention)

    def _chosen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Kept positions `[R, K]` of the committed entries, and which of the list count."""
        keep = self._keep(batch.lengths)[:, None]
        skipped = batch.lengths[:, None] - keep
        position = torch.where(self.index < self.parameters.sinks, self.index, self.index + skipped)
        return position, self.index < keep
