"""MagicDec: the target drafts for itself over a KV of its own that is kept small."""

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.config import RunConfig
from specbench.methods.base import EngineMethod, Method, Parameters
from specbench.methods.self_speculation import TUNABLE, share_of
from specbench.registry import unknown


class MagicDecParameters(Parameters):
    """Settings of every variant."""

    variant: str
    gamma: int = Field(4, ge=0, le=64, description="Draft tokens a step.")
    budget: int = Field(512, ge=1, description="KV entries that drafts read.")
    kept_ratio: float | None = Field(
        None, gt=0, le=1, description="Share of the context that drafts read, in place of a budget."
    )
    min_tokens: int = Field(64, ge=1, description="Fewest KV entries of a kept_ratio.")

    @abstractmethod
    def least(self) -> tuple[int, str]:
        """The smallest set that the variant can work with, and why."""

    @model_validator(mode="after")
    def _one_size_that_suffices(self) -> Self:
        if self.kept_ratio is not None and "budget" in self.model_fields_set:
            raise ValueError(
                f"budget ({self.budget}) and kept_ratio ({self.kept_ratio}) both say how much "
                "drafts read: leave one out"
            )
        name = "budget" if self.kept_ratio is None else "min_tokens"
        size, (least, why) = getattr(self, name), self.least()
        if size < least:
            raise ValueError(f"{name} ({size}) is less than {least}: {why}")
        return self


class MagicDec(EngineMethod):
    """Self-speculation with a reduced KV; each variant reduces it in its own way.

    A budget beyond the context keeps all of it. Drafts read the target's own KV, so that there is
    neither a second prefill nor a second cache, as the release has; a small model has both.

    Source: Sadhukhan et al., "MagicDec", ICLR 2025, arXiv 2408.11049.
    """

    name = "magicdec"
    summary = "self-speculation; drafts read a KV that is kept small"
    paper = "arXiv 2408.11049"
    parameters_type: ClassVar[type[Parameters]] = MagicDecParameters
    tunable = TUNABLE
    parameters: MagicDecParameters

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most."""
        return self.parameters.gamma

    @classmethod
    def variants(cls) -> dict[str, type[Method]]:
        """The variants, the default first, and that which drafts with a small model."""
        from specbench.methods.magicdec.quest import Quest
        from specbench.methods.magicdec.snapkv import SnapKV
        from specbench.methods.magicdec.stream import Stream
        from specbench.methods.magicdec.stream_draft import StreamDraft

        return {
            "magicdec-stream": Stream,
            "magicdec-snapkv": SnapKV,
            "magicdec-quest": Quest,
            "magicdec-stream --draft-model": StreamDraft,
        }

    @classmethod
    def arms(cls, config: RunConfig) -> dict[str, Method]:
        """The variant asked for, or all.

        Raises
        ------
        UsageError
            An unknown variant, or a setting out of range.
        """
        kinds = cls.variants()
        drafter = kinds.pop("magicdec-stream --draft-model")
        if config.draft_model:
            kinds["magicdec-stream"] = drafter
        found = {name.removeprefix(f"{cls.name}-"): name for name in kinds}
        wanted = config.variant or next(iter(found))
        if wanted != "all" and wanted not in found:
            raise unknown("variant", wanted, [*found, "all"])
        return {
            name: kinds[name].from_config(config.model_copy(update={"variant": variant}))
            for variant, name in found.items()
            if wanted in (variant, "all")
        }

    def entries_read(self, length: int) -> int:
        """Of a prefix of `length` entries."""
        return self._most(length)

    def report(self) -> dict[str, object]:
        """The settings for the records; of budget and kept_ratio, the one that holds."""
        unused = {"budget"} if self.parameters.kept_ratio is not None else {"min_tokens"}
        return self.parameters.model_dump(exclude=unused)

    def _keep(self, length: Tensor) -> Tensor:
        """Entries kept of a context of `length`, int64 of the same shape."""
        p = self.parameters
        if p.kept_ratio is None:
            return length.clamp(max=p.budget)
        return share_of(length, p.kept_ratio, p.min_tokens)

    def _most(self, max_len: int) -> int:
        """Entries kept of the longest context."""
        return int(self._keep(torch.tensor(max_len)))
