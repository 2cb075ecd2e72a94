"""SpecExtend with the target as its own drafter, and trees instead of chains."""

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.draft_model.target import TargetDrafter
from specbench.methods.specextend.trees import TreeExtend, TreeParameters

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class SelfTreeParameters(TreeParameters):
    """Settings of the target as its own drafter of trees."""

    drafts: Literal["tree"] = Field("tree", description="Trees instead of chains.")


class SelfTree(TreeExtend):
    """The chosen entries of the target's KV are copied side by side, as they are."""

    summary = "self-speculation in trees over the chunks that the target's last layer attends to"
    parameters_type = SelfTreeParameters
    parameters: SelfTreeParameters

    @property
    def fed(self) -> int:
        """The last committed token."""
        return 1

    def known(self, batch: Batch) -> Tensor:
        """All whose KV verification wrote."""
        return batch.lengths

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Beside scores and trees, the working KV."""
        own = TargetDrafter.working_bytes(model, rows, self._working(max_len), dtype)
        return super().memory_bytes(model, rows, max_len, dtype) + own

    def bind(self, engine: "Engine") -> None:
        """Allocate the working KV."""
        super().bind(engine)
        bound = vars(self).get("drafter")
        if bound is None or bound.engine is not engine:
            self.drafter = TargetDrafter(engine, self._working(engine.max_len))

    def _working(self, max_len: int) -> int:
        return self.before(max_len) + self.levels * self.nodes
