"""SpecExtend: chunks of the drafter's KV, chosen by the target's last-layer attention."""

from typing import TYPE_CHECKING, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.config import Collecting, RunConfig
from specbench.engine.batch import Batch
from specbench.engine.forward import Tap
from specbench.methods.base import EngineMethod, Method, Parameters
from specbench.methods.self_speculation import share_of
from specbench.methods.specextend.retrieval import Retrieval

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class SpecExtendParameters(Parameters):
    """Settings of both drafters."""

    chunk: int = Field(32, ge=1, description="Tokens of a chunk.")
    top_chunks: int = Field(32, ge=1, description="Chunks that drafts read.")
    kept_ratio: float | None = Field(
        None, gt=0, le=1, description="Share of the context that drafts read, in whole chunks."
    )
    min_tokens: int = Field(64, ge=1, description="Fewest KV entries of a kept_ratio.")
    interval: int = Field(4, ge=1, description="Verifications between two choices.")
    collect: Collecting = Field("cheap", description="Score one query, or all verify rows.")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.kept_ratio is not None and "top_chunks" in self.model_fields_set:
            raise ValueError(
                f"top_chunks ({self.top_chunks}) and kept_ratio ({self.kept_ratio}) both say how "
                "much drafts read: leave one out"
            )
        return self


class SpecExtend(EngineMethod):
    """Cross-model retrieval; a subclass drafts.

    Every `interval` verifications of a request, the target's last layer scores the context from
    the deepest accepted draft: softmax weights, averaged over the heads and over chunks of `chunk`
    tokens. Drafts read the best `top_chunks` of what was scored, and every token after it. A
    request begins with its last chunks, as nothing was scored yet. A budget beyond the context
    keeps all of it.

    The release gathers weights of all verify rows (``collect="full"``). Only one row of them is
    used, and which one is known after acceptance: ``collect="cheap"`` keeps the rows' queries and
    scores that one. Unlike in the release, nothing of a request reaches the next, and tokens that
    came after the scores are read whichever chunk they fall in.

    Source: Cha and Kim, "SpecExtend", 2025, arXiv 2505.20776.
    """

    name = "specextend"
    summary = "drafts read the chunks that the target's last layer attends to"
    paper = "arXiv 2505.20776"
    parameters_type: ClassVar[type[Parameters]] = SpecExtendParameters
    parameters: SpecExtendParameters

    @classmethod
    def variants(cls) -> dict[str, type[Method]]:
        """With the target as its own drafter of chains, the default, or trees; a small model."""
        from specbench.methods.specextend.self_draft import SelfDraft
        from specbench.methods.specextend.self_tree import SelfTree
        from specbench.methods.specextend.separate import SeparateDraft

        return {
            cls.name: SelfDraft,
            f"{cls.name} --drafts tree": SelfTree,
            f"{cls.name} --draft-model": SeparateDraft,
        }

    @classmethod
    def arms(cls, config: RunConfig) -> dict[str, Method]:
        """One arm, or one for each way to collect."""
        chains, trees, with_model = cls.variants().values()
        kind = with_model if config.draft_model else trees if config.drafts == "tree" else chains
        if config.collect != "all":
            return {cls.name: kind.from_config(config)}
        return {
            f"{cls.name}-{collect}": kind.from_config(
                config.model_copy(update={"collect": collect})
            )
            for collect in ("cheap", "full")
        }

    def report(self) -> dict[str, object]:
        """The settings for the records; of top_chunks and kept_ratio, the one that holds."""
        unused = {"top_chunks"} if self.parameters.kept_ratio is not None else {"min_tokens"}
        return self.parameters.model_dump(exclude=unused)

    def entries_read(self, length: int) -> int:
        """Of a prefix of `length` entries."""
        return min(self._most(length) * self.parameters.chunk, length)

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Scores and choices, and what collecting holds for a moment."""
        verified = 1 + max(self.gamma, self.nodes)
        return Retrieval.memory_bytes(self.parameters.collect, model, rows, verified, max_len)

    def bind(self, engine: "Engine") -> None:
        """Allocate scores and choices."""
        super().bind(engine)
        p = self.parameters
        self.retrieval = Retrieval(
            engine, p.chunk, p.interval, p.collect, self._keep, self._most(engine.max_len)
        )

    def tap(self, batch: Batch) -> Tap | None:
        """The last layer's queries, or its rows' weights."""
        return self.retrieval.watch(batch) if self.gamma else None

    def admit(self, row: int, batch: Batch) -> None:
        """The last chunks."""
        self.retrieval.admit(row, batch)

    def observe(self, batch: Batch) -> None:
        """Choose anew for the requests whose turn it is."""
        if self.gamma:
            self.retrieval.observe(batch)

    def _keep(self, length: Tensor) -> Tensor:
        """Chunks kept of a context of `length` entries, int64 of the same shape."""
        p = self.parameters
        if p.kept_ratio is None:
            return torch.full_like(length, p.top_chunks)
        return (share_of(length, p.kept_ratio, p.min_tokens) + p.chunk - 1) // p.chunk

    def _most(self, max_len: int) -> int:
        """Chunks kept of the longest context."""
        chunks = -(-max_len // self.parameters.chunk)
        return min(int(self._keep(torch.tensor(max_len))), chunks)
