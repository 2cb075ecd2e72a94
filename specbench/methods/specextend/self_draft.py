"""SpecExtend with the target as its own drafter: chains over chunks of the target's own KV."""

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from specbench.engine.batch import Batch
from specbench.methods.base import Draft
from specbench.methods.self_speculation import TUNABLE, draft_sparsely
from specbench.methods.specextend.method import SpecExtend, SpecExtendParameters

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class SelfDraftParameters(SpecExtendParameters):
    """Settings of the target as its own drafter."""

    drafts: Literal["chain"] = Field("chain", description="Chains, or trees (`SelfTree`).")
    gamma: int = Field(6, ge=0, le=64, description="Draft tokens a step.")


class SelfDraft(SpecExtend):
    """Every layer and head reads the same chunks, at the keys' own positions."""

    summary = "self-speculation; drafts read the chunks that the target's last layer attends to"
    parameters_type = SelfDraftParameters
    tunable = TUNABLE
    drafts_with_target = True
    parameters: SelfDraftParameters

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most."""
        return self.parameters.gamma

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Beside the scores, the slots of a step and what computing them holds."""
        width = self._most(max_len) * self.parameters.chunk + self._after() * (1 + self.gamma)
        return super().memory_bytes(model, rows, max_len, dtype) + rows * width * 8 * 8

    def bind(self, engine: "Engine") -> None:
        """Allocate the slots that drafts read, `[R, K]`."""
        super().bind(engine)
        width = self._most(engine.max_len) * self.parameters.chunk
        rows = engine.batch.rows
        self.slots = torch.full((rows, width), -1, dtype=torch.int32, device=engine.device)

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one sparse forward each."""
        if self.gamma == 0:
            return None
        engine = self.engine
        if not engine.frozen:
            with engine.phases("selection"):
                self.slots.copy_(batch.slots(*self.retrieval.entries()))
        # the same for all layers and heads
        selected = self.slots[None, :, None].expand(engine.config.num_layers, -1, -1, -1)
        after = torch.arange(self._after(), device=engine.device)
        reach = self.retrieval.scored[:, None] + after
        return draft_sparsely(engine, self.gamma, selected, reach)

    def _after(self) -> int:
        """Most entries behind those that were scored, the drafts included."""
        return (self.parameters.interval - 1) * (self.gamma + 1) + self.gamma
