"""SpecExtend's trees, whoever drafts them."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.base import Parameters, TreeDraft, Tunable
from specbench.methods.draft_model.drafter import Drafter
from specbench.methods.draft_model.opt_tree import opt_tree
from specbench.methods.self_speculation import TUNABLE
from specbench.methods.specextend.method import SpecExtend, SpecExtendParameters

if TYPE_CHECKING:
    from specbench.engine.model_config import ModelConfig

_MOST_ROWS, _MOST_COLUMNS = 128, 512  # of the tree attention's kernel
_NODES_A_LEVEL = 5  # of trees that are tuned: what the default depth and nodes are to each other


class TreeParameters(SpecExtendParameters):
    """Settings of trees."""

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


def _tuned(ratio: float | None, depth: int) -> dict[str, float | int | None]:
    """A budget, and a tree that has more nodes the deeper it is."""
    return {"kept_ratio": ratio, "depth": depth, "nodes": _NODES_A_LEVEL * depth}


class TreeExtend(SpecExtend):
    """OPT-Trees over a working KV of the chosen entries; a subclass says whose."""

    tunable = Tunable(
        budget=TUNABLE.budget,
        ratios=TUNABLE.ratios,
        length="depth",
        gammas=(1, 2, 3, 4, 5, 6, 8, 10),
        probe_gamma=6,
        options=_tuned,
        derived=("nodes",),
    )
    parameters_type: ClassVar[type[Parameters]] = TreeParameters
    parameters: TreeParameters
    drafter: Drafter

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
        """Beside the scores, what growing a tree holds: a level's logits, paths, their order."""
        level = rows * self.nodes * model.vocab_size * 4 * 6
        return super().memory_bytes(model, rows, max_len, dtype) + level

    @abstractmethod
    def known(self, batch: Batch) -> Tensor:
        """Committed entries `[R]` that can be gathered; what follows is fed."""

    def draft(self, batch: Batch) -> TreeDraft:
        """A tree for every row."""
        p, engine = self.parameters, self.engine
        if engine.frozen:
            self.drafter.again()
        else:
            with engine.phases("selection"):
                self.drafter.gather(self.retrieval.kept(self.known(batch)))
        first = self._log_probabilities(self.drafter.catch_up(self.fed))

        def expand(tokens: Tensor, depth: int, mask: Tensor) -> Tensor:
            return self._log_probabilities(self.drafter.level(tokens, depth, mask))

        return opt_tree(first, expand, p.nodes, p.depth, p.threshold, self._enough)

    @property
    @abstractmethod
    def fed(self) -> int:
        """Tokens that an iteration feeds before it drafts, at most."""

    @property
    def levels(self) -> int:
        """Levels that are forwarded: of the last, only the tokens are wanted."""
        return self.parameters.depth - 1

    def before(self, max_len: int) -> int:
        """Entries before a tree, at most: the chunks, what came since, and what is fed."""
        p = self.parameters
        kept = min(self._most(max_len) * p.chunk, max_len)
        return kept + (p.interval + 1) * (p.depth + 1)

    def _enough(self, growing: Tensor) -> bool:
        # a captured iteration runs all its levels; the host may look where nothing is captured
        return self.engine.graph_mode(self) == "eager" and not bool(
            (growing & self.engine.batch.active).any()
        )

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """After temperature, top-k and top-p, which are what decides acceptance."""
        sampling = self.engine.sampling
        if sampling.greedy:
            return torch.log_softmax(logits, -1)
        return self.engine.compute.probabilities(logits, sampling).log()
