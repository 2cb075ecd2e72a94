"""SpecExtend with a small model: trees over chosen chunks of its own KV."""

from pydantic import Field
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.draft_model.loading import Reach
from specbench.methods.draft_model.method import WithDraftModel
from specbench.methods.specextend.trees import TreeExtend, TreeParameters


class SeparateDraftParameters(TreeParameters):
    """Settings of a small model."""

    draft_model: str = Field(description="The model, named as for --model.")
    draft_window: int = Field(512, ge=1, description="Prompt tokens its prefill looks back on.")


class SeparateDraft(WithDraftModel, TreeExtend):
    """The drafter's keys are kept unrotated and read at positions without gaps.

    Each iteration gathers the chosen entries into a working KV, feeds what was committed since, and
    grows a tree. In the release the tokens are fed before the choice changes; here after it.
    """

    summary = "a small model drafts trees over the chunks that the target's last layer attends to"
    parameters_type = SeparateDraftParameters
    parameters: SeparateDraftParameters

    @property
    def fed(self) -> int:
        """All that an iteration commits."""
        return self.gamma + 1

    def known(self, batch: Batch) -> Tensor:
        """What the drafter was fed."""
        return self.drafter.filled

    def reach(self, max_len: int, prefill_chunk: int) -> Reach:
        """What stands before a tree, and its levels."""
        before, levels = self.before(max_len), self.levels
        return self.source.reach(
            before + levels * self.nodes,
            before + levels,
            max_len,
            self.parameters.draft_window,
            prefill_chunk,
        )
