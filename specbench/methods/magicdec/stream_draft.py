"""A small model that drafts over the first tokens and the most recent ones, or over all."""

from typing import TYPE_CHECKING, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.base import Draft
from specbench.methods.draft_model.loading import Reach
from specbench.methods.draft_model.method import WithDraftModel
from specbench.methods.magicdec.method import MagicDec
from specbench.methods.magicdec.stream import StreamParameters

if TYPE_CHECKING:
    from specbench.engine.engine import Engine


class StreamDraftParameters(StreamParameters):
    """Settings of the variant `stream` with a small model."""

    draft_model: str = Field(description="The model, named as for --model.")
    draft_window: int = Field(512, ge=1, description="Prompt tokens its prefill looks back on.")

    @model_validator(mode="after")
    def _positions_without_gaps(self) -> Self:
        if self.positions == "absolute" and "positions" in self.model_fields_set:
            raise ValueError(
                "positions (absolute): a draft model reads its KV cache-relative, so that its "
                "context need not hold the prompt; leave it out"
            )
        return self


class StreamDraft(WithDraftModel, MagicDec):
    """The small model's own KV: `sinks` first entries and a window that rolls on.

    Its keys are kept unrotated and read at positions without gaps; a budget beyond the context
    reads all of them. What was committed is fed together, so its KV is the model's own.
    """

    summary = "a small model drafts; it reads the first tokens and a recent window"
    parameters_type = StreamDraftParameters
    parameters: StreamDraftParameters

    def report(self) -> dict[str, object]:
        """The settings as they hold."""
        return super().report() | {"positions": "cache-relative"}

    def bind(self, engine: "Engine") -> None:
        """Load the drafter, and make the positions that it chooses from."""
        super().bind(engine)
        # then entries stay where they are, and need not be gathered again
        self.whole = self._most(engine.max_len) == engine.max_len
        self.position = torch.arange(engine.max_len, device=engine.device)

    def admit(self, row: int, batch: Batch) -> None:
        """The drafter's own prefill."""
        super().admit(row, batch)
        if self.gamma and self.whole:
            self.drafter.gather(self._kept(self.drafter.filled))

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens; the first forward feeds what was committed."""
        if self.gamma == 0:
            return None
        engine, drafter = self.engine, self.drafter
        if self.whole:
            drafter.length.copy_(drafter.filled)
        elif engine.frozen:
            drafter.again()
        else:
            with engine.phases("selection"):
                drafter.gather(self._kept(drafter.filled))
        logits = drafter.catch_up(self.gamma + 1)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        for step in range(self.gamma):
            token, q = engine.pick(logits, step)
            tokens.append(token)
            if q is not None:
                probs.append(q)
            if step + 1 < self.gamma:
                logits = drafter.chain(token, step)
        return Draft(torch.stack(tokens, 1), torch.stack(probs, 1) if probs else None)

    def _kept(self, filled: Tensor) -> Tensor:
        """Of the first `filled` `[R]` entries, those that drafts read, bool `[R, L]`."""
        filled = filled[:, None]
        recent = filled - (self._keep(filled) - self.parameters.sinks)
        near = (self.position < self.parameters.sinks) | (self.position >= recent)
        return near & (self.position < filled)

    def reach(self, max_len: int, prefill_chunk: int) -> Reach:
        """The budget, what is fed, and the drafts."""
        working = self._most(max_len) + 2 * self.gamma + 1
        window = self.parameters.draft_window
        return self.source.reach(working, working, max_len, window, prefill_chunk)
