"""SpecExtend with a small model: OPT-Trees over chosen chunks of its own KV."""

from typing import TYPE_CHECKING, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.sampling import probabilities
from specbench.methods.base import TreeDraft
from specbench.methods.draft_model.loading import Reach
from specbench.methods.draft_model.method import WithDraftModel
from specbench.methods.draft_model.opt_tree import opt_tree
from specbench.methods.specextend.method import SpecExtend, SpecExtendParameters

if TYPE_CHECKING:
    from specbench.engine.model_config import ModelConfig

_MOST_ROWS, _MOST_COLUMNS = 128, 512  # of the tree attention's kernel


class SeparateDraftParameters(SpecExtendParameters):
    """Settings of a small model."""

    draft_model: str = Field(description="The model, named as for --model.")
    draft_window: int = Field(512, ge=1, description="Prompt tokens its prefill looks back on.")
    nodes: int = Field(50, ge=1, lt=_MOST_ROWS, description="Nodes of a tree, and of a level.")
    depth: int = Field(10, ge=1, description="Levels of a tree, at most.")
    threshold: float = Field(0.7, ge=0, description="Expected tokens that a level must add.")

    @model_validator(mode="after")
    def _levels_fit(self) -> Self:
        if self.nodes * (self.depth - 1) > _MOST_COLUMNS:
            raise ValueError(
                f"{self.nodes} nodes on {self.depth} levels are more than the {_MOST_COLUMNS} that "
                "drafting can look back on: lower nodes or depth"
            )
        return self


class SeparateDraft(WithDraftModel, SpecExtend):
    """The drafter's keys are kept unrotated and read at positions without gaps.

    Each iteration gathers the chosen entries into a working KV, feeds what was committed since, and
    grows a tree. In the release the tokens are fed before the choice changes; here after it.
    """

    summary = "a small model drafts trees over the chunks that the target's last layer attends to"
    parameters_type = SeparateDraftParameters
    parameters: SeparateDraftParameters

    @property
    def gamma(self) -> int:
        """The depth of the trees."""
        return self.parameters.depth

    @property
    def nodes(self) -> int:
        """Nodes of a tree."""
        return self.parameters.nodes

    def report(self) -> dict[str, object]:
        """The settings, gamma among them."""
        return super().report() | {"gamma": self.gamma}

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Beside scores and drafter, what growing a tree holds."""
        vocab = max(self.source.config.vocab_size, model.vocab_size)
        # logits of a level, as float32: log-probabilities, paths, their order
        level = rows * self.nodes * vocab * 4 * 6
        return super().memory_bytes(model, rows, max_len, dtype) + level

    def draft(self, batch: Batch) -> TreeDraft:
        """A tree for every row."""
        p, engine = self.parameters, self.engine
        with engine.phases("selection"):
            self.drafter.gather(self.retrieval.kept(self.drafter.filled))
        first = self._log_probabilities(self.drafter.catch_up(p.depth + 1))

        def expand(tokens: Tensor, depth: int, mask: Tensor) -> Tensor:
            return self._log_probabilities(self.drafter.level(tokens, depth, mask))

        return opt_tree(first, expand, p.nodes, p.depth, p.threshold, self._enough)

    def _enough(self, growing: Tensor) -> bool:
        # a captured iteration runs all its levels; the host may look where nothing is captured
        return self.engine.graph_mode == "eager" and not bool(
            (growing & self.engine.batch.active).any()
        )

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """After temperature, top-k and top-p, which are what decides acceptance."""
        sampling = self.engine.sampling
        if sampling.greedy:
            return torch.log_softmax(logits, -1)
        return probabilities(logits, sampling).log()

    def reach(self, max_len: int, prefill_chunk: int) -> Reach:
        """The chunks, what came since their choice, what is fed, and the levels of a tree."""
        p = self.parameters
        kept = min(self._most(max_len) * p.chunk, max_len)
        before = kept + (p.interval + 1) * (p.depth + 1)
        levels = p.depth - 1
        return self.source.reach(
            before + levels * p.nodes, before + levels, max_len, p.draft_window, prefill_chunk
        )
