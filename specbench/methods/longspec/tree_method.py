"""LongSpec in trees: level by level, the best by cumulative log-probability."""

from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from specbench.config import RunConfig
from specbench.engine.batch import Batch
from specbench.engine.sampling import Sampling
from specbench.errors import UsageError
from specbench.kernels.tree_growth.reference import GrownTree
from specbench.methods.base import Capabilities, TreeDraft, Tunable
from specbench.methods.longspec.method import LongSpec, LongSpecParameters
from specbench.methods.longspec.tree import grow

if TYPE_CHECKING:
    from specbench.engine.model_config import ModelConfig

_MOST_ROWS = 128  # of the tree attention's kernel: the root and the nodes


class LongSpecTreeParameters(LongSpecParameters):
    """Settings of trees."""

    drafts: Literal["tree"] = Field("tree", description="Trees, or chains (`LongSpecChain`).")
    tree_shape: tuple[PositiveInt, ...] = Field(
        (4, 16, 16, 16, 16), min_length=1, max_length=64, description="Nodes of each level."
    )

    @model_validator(mode="after")
    def _nodes_fit(self) -> Self:
        if sum(self.tree_shape) >= _MOST_ROWS:
            raise ValueError(
                f"tree_shape has {sum(self.tree_shape)} nodes, a verification takes less than "
                f"{_MOST_ROWS}"
            )
        return self


def _tuned(width: float | None, depth: int) -> dict[str, tuple[int, ...]]:
    """A tree of equal levels, the first one a quarter as wide, as the default has it."""
    nodes = int(width or 1)
    if nodes != width:
        raise UsageError(f"longspec: a level of {width:g} nodes: give a whole number")
    return {"tree_shape": (max(nodes // 4, 1), *[nodes] * (depth - 1))}


class LongSpecTree(LongSpec):
    """Trees of a fixed shape, each level in one forward of the block.

    A level's nodes stand at one position and see the ring, their ancestors and the target's KV. The
    probabilities that are summed are those after temperature, top-k and top-p, which are what
    decides acceptance; the release ranks by the untempered ones.
    """

    capabilities = Capabilities(tree=True, needs_draft_weights=True)
    parameters_type = LongSpecTreeParameters
    tunable = Tunable(
        budget="width",
        ratios=(2, 4, 8, 16),
        length="depth",
        gammas=(1, 2, 3, 4, 5, 6, 8),
        probe_gamma=5,
        options=_tuned,
        derived=("tree_shape",),
    )
    parameters: LongSpecTreeParameters
    shallower = "give --tree-shape fewer levels"

    @property
    def shape(self) -> tuple[int, ...]:
        """Nodes of each level."""
        return self.parameters.tree_shape

    @property
    def gamma(self) -> int:
        """The depth of the trees."""
        return len(self.shape)

    @property
    def depth(self) -> int:
        """Levels."""
        return len(self.shape)

    @property
    def width(self) -> int:
        """Nodes of the widest level."""
        return max(self.shape)

    @property
    def nodes(self) -> int:
        """Nodes of a tree."""
        return sum(self.shape)

    @property
    def widths(self) -> tuple[int, ...]:
        """The nodes of all levels but the last."""
        return 1, *self.shape[:-1]

    def report(self) -> dict[str, Any]:
        """The settings, gamma and the number of nodes among them, and the weights' checksum."""
        return super().report() | {"gamma": self.gamma, "nodes": self.nodes}

    def check(self, config: RunConfig, model: "ModelConfig", max_len: int) -> None:
        """Refuse levels with more nodes than the vocabulary has tokens for.

        Raises
        ------
        UsageError
        """
        super().check(config, model, max_len)
        above = 1
        for level, width in enumerate(self.shape, 1):
            if width > above * model.vocab_size:
                raise UsageError(
                    f"longspec: level {level} of --tree-shape has {width} nodes, but the "
                    f"vocabulary of {model.vocab_size} tokens gives it "
                    f"{above * model.vocab_size} at most"
                )
            above = width

    def draft(self, batch: Batch) -> TreeDraft:
        """A tree for every row."""
        self.catch_up(batch)
        tree = self.grow(batch)
        return TreeDraft(tree.tokens, tree.parents)

    def grow(self, batch: Batch) -> GrownTree:
        """The tree after the last committed tokens, which the rings must hold."""
        none = torch.empty(1, 0, dtype=torch.bool, device=self.engine.device)

        def score(level: int, tokens: Tensor | None, paths: Tensor | None) -> Tensor:
            if tokens is None or paths is None:
                tokens, paths = batch.tokens[:, None], none
            return self._scores(self.score(batch, level, tokens, paths), self.engine.sampling)

        compute = self.engine.compute
        return grow(self.shape, score, compute.top_tokens, compute.add_level)

    def _scores(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """Logits of the distribution that the target's is like."""
        if sampling.greedy:
            return logits
        return self.engine.compute.probabilities(logits, sampling).log()
