"""Step 1's rule: the smallest ratio whose acceptance length is on the plateau."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Histograms = tuple[tuple[int, ...], ...]
"""For each prompt: entry n is the number of steps that committed n tokens."""

RESAMPLES = 500
SEED = 0
NARROW, WIDE = 0.01, 0.05
"""The tolerance is one standard error, but at least and at most these shares of the best."""


@lru_cache(maxsize=256)
def tolerance(best: Histograms, other: Histograms) -> float:
    """How far `other`'s acceptance length may lie below `best`'s and count as equal to it.

    One standard error of their relative difference. Each of 500 resamples draws prompts with
    replacement, the same for both, and each prompt's steps anew from its histogram.

    """
    weights, top, state = _of_the_best(best)
    random = np.random.default_rng(SEED)
    random.bit_generator.state = state
    low = _resampled(other, weights, random)
    spread = float(np.nanstd((top - low) / top))
    return float(np.clip(spread, NARROW, WIDE))


@lru_cache(maxsize=16)
def _of_the_best(
    best: Histograms,
) -> tuple[NDArray[np.int64], NDArray[np.float64], Mapping[str, Any]]:
    """What every comparison with `best` begins with: drawn prompts, their lengths, the state."""
    random = np.random.default_rng(SEED)
    prompts = len(best)
    weights = random.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    top = _resampled(best, weights, random)
    return weights, top, random.bit_generator.state


def acceptance_length(histograms: Histograms) -> float:
    """Tokens per step, all prompts together; NaN without a step."""
    steps = sum(sum(counts) for counts in histograms)
    tokens = sum(n * count for counts in histograms for n, count in enumerate(counts))
    return tokens / steps if steps else float("nan")


def on_plateau(measured: Mapping[float, Histograms]) -> list[float]:
    """The ratios, ascending, whose acceptance length is that of the best within the tolerance."""
    if not measured:
        return []
    lengths = {ratio: acceptance_length(h) for ratio, h in measured.items()}
    # of equals the smallest, so that a plateau is measured against its beginning
    top = max(sorted(lengths), key=lambda ratio: lengths[ratio])
    return [
        ratio
        for ratio in sorted(measured)
        if ratio == top
        or lengths[ratio] >= lengths[top] * (1 - tolerance(measured[top], measured[ratio]))
    ]


def _resampled(
    histograms: Histograms, weights: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64]:
    """Acceptance length of each resample `[RESAMPLES]`."""
    steps = np.zeros(len(weights))
    tokens = np.zeros(len(weights))
    for prompt, counts in enumerate(histograms):
        total = sum(counts)
        if not total:
            continue
        drawn = random.multinomial(total, np.array(counts) / total, size=len(weights))
        steps += weights[:, prompt] * total
        tokens += weights[:, prompt] * (drawn @ np.arange(len(counts)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(steps > 0, tokens / steps, np.nan)
