"""Sampling parameters, as specbench sets them."""

from dataclasses import dataclass, field
from enum import Enum


class RequestOutputKind(Enum):
    """How much each answer carries."""

    DELTA = 1


@dataclass
class SamplingParams:
    """Unknown names are refused, as by vLLM."""

    max_tokens: int
    detokenize: bool
    output_kind: RequestOutputKind
    ignore_eos: bool
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: list[int] = field(default_factory=list)
    skip_reading_prefix_cache: bool | None = None
