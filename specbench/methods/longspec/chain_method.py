"""LongSpec in chains: gamma tokens, one after another."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.base import Draft, Tunable
from specbench.methods.longspec.method import LongSpec, LongSpecParameters


class LongSpecChainParameters(LongSpecParameters):
    """Settings of chains."""

    drafts: Literal["chain"] = Field("chain", description="Chains instead of trees.")
    gamma: int = Field(4, ge=0, le=64, description="Draft tokens a step.")


class LongSpecChain(LongSpec):
    """Drafts are drawn from the block's distribution, and judged by the rejection rule."""

    summary = "the same in chains instead of trees"
    parameters_type = LongSpecChainParameters
    tunable = Tunable(gammas=(1, 2, 3, 4, 5, 6, 8), probe_gamma=5)
    parameters: LongSpecChainParameters
    shallower = "lower --gamma"

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most."""
        return self.parameters.gamma

    @property
    def widths(self) -> tuple[int, ...]:
        """All drafts but the last."""
        return (1,) * max(self.gamma, 1)

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one forward of the block each."""
        if self.gamma == 0:
            return None
        self.catch_up(batch)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        token = batch.tokens
        for step in range(self.gamma):
            # every draft up to itself
            before = torch.ones(1, step, dtype=torch.bool, device=self.engine.device)
            token, q = self._pick(batch, step, token[:, None], before)
            tokens.append(token)
            if q is not None:
                probs.append(q)
        return Draft(torch.stack(tokens, 1), torch.stack(probs, 1) if probs else None)

    def _pick(
        self, batch: Batch, step: int, token: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The next draft `[R]`, and the distribution that it is from where that is random."""
        if self.engine.sampling.greedy and self.levels is not None:
            return self.engine.compute.first(self.hidden(batch, step, token, before)[:, 0]), None
        return self.engine.pick(self.score(batch, step, token, before)[:, 0], step)
