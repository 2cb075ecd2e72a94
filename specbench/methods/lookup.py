"""Prompt lookup: what followed the last tokens when they occurred before is drafted again."""

from typing import TYPE_CHECKING, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.base import Draft, EngineMethod, Parameters, Tunable

if TYPE_CHECKING:
    from specbench.engine.model_config import ModelConfig


class LookupParameters(Parameters):
    """Settings of prompt lookup."""

    gamma: int = Field(8, ge=0, le=16, description="Draft tokens a step, at most.")
    ngram_max: int = Field(4, ge=1, le=16, description="Longest run of last tokens looked for.")
    ngram_min: int = Field(2, ge=1, description="Shortest run of last tokens looked for.")

    @model_validator(mode="after")
    def _range_holds_something(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(
                f"ngram_min ({self.ngram_min}) exceeds ngram_max ({self.ngram_max}): no run of "
                "tokens could be looked for"
            )
        return self


class Lookup(EngineMethod):
    """Drafts copied from the prompt and the output so far; no model drafts.

    A step drafts nothing where nothing was found, and no more than was found.

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    name = "lookup"
    summary = "no draft model; copies what followed the last tokens when they occurred before"
    parameters_type = LookupParameters
    tunable = Tunable(gammas=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16), probe_gamma=8)
    parameters: LookupParameters

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most."""
        return self.parameters.gamma

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """What matching holds for a moment: ranks, lengths of matches and masks of every token."""
        return rows * (max_len + 1) * 40

    def draft(self, batch: Batch) -> Draft | None:
        """The tokens after the latest earlier occurrence of the longest run that has one."""
        p = self.parameters
        if p.gamma == 0:
            return None
        end, found = latest_occurrence(batch.history, batch.lengths, p.ngram_max, p.ngram_min)
        place = end[:, None] + 1 + torch.arange(p.gamma, device=end.device)
        # what lies past the last token is no draft, and only has to be some token
        tokens = batch.history.gather(1, place.clamp(max=batch.history.shape[1] - 1))
        return Draft(tokens, counts=(batch.lengths - end).clamp(max=p.gamma) * found)


def latest_occurrence(
    history: Tensor, last: Tensor, ngram_max: int, ngram_min: int
) -> tuple[Tensor, Tensor]:
    """Where the last n tokens ended before, for the largest n from `ngram_max` to `ngram_min`.

    An occurrence may overlap the last n tokens themselves. Shapes are fixed and nothing is decided
    by the host, so that the search can be part of a captured iteration.

    Parameters
    ----------
    history : Tensor
        int64 `[R, L]`, tokens by position.
    last : Tensor
        int64 `[R]`, position of each request's last token; what stands behind it is not read.
    ngram_max, ngram_min : int

    Returns
    -------
    end : Tensor
        int64 `[R]`, position of the occurrence's last token, below `last`; 0 where none is found.
    found : Tensor
        bool `[R]`.
    """
    length = history.shape[1]
    position = torch.arange(length, device=history.device)
    runs = position < last[:, None]
    matched = torch.zeros_like(history)
    for back in range(min(ngram_max, length)):
        suffix = history.gather(1, (last - back).clamp(min=0)[:, None])
        # a run cannot begin before the first token; the suffix is the longer of the two
        runs[:, :back] = False
        runs[:, back:] &= history[:, : length - back] == suffix
        matched += runs
    # the longest match first, the latest among equals; one number a position keeps both
    rank = torch.where(matched >= ngram_min, matched * length + position, -1)
    best, end = rank.max(1)
    found = best >= 0
    return end * found, found
