"""Medians over repeats, and bootstrap intervals over prompts and repeats."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 1000
SEED = 0
MIN_REPEATS = 3
_CONFIDENCE = 95.0
_DEVIATIONS = 1.959964  # of a normal distribution, for that confidence


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; None is unknown."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


def throughput(tokens: Array, seconds: Array) -> Estimate:
    """Tokens per second: the median over repeats, with a bootstrap interval.

    Parameters
    ----------
    tokens, seconds : ndarray
        `[repeats, prompts]`, 0 where a prompt contributes nothing.

    Returns
    -------
    Estimate
        Tokens/s; no interval below `MIN_REPEATS`, where nothing tells how repeats differ.
    """
    ones = np.ones_like(tokens)
    return _estimate(tokens, seconds, ones, ones)


def speedup(tokens: Array, seconds: Array, base_tokens: Array, base_seconds: Array) -> Estimate:
    """Ratio of two arms' throughputs in the same repeat: the median over repeats, with interval.

    Each resample draws prompts and repeats with replacement, the same ones for both arms, so that
    what the arms share (a slow prompt, a slow minute) cancels.

    Parameters
    ----------
    tokens, seconds, base_tokens, base_seconds : ndarray
        `[repeats, prompts]` of the arm and of the arm that it is compared with.
    """
    paired = (seconds > 0) & (base_seconds > 0)
    return _estimate(
        np.where(paired, tokens, 0),
        np.where(paired, seconds, 0),
        np.where(paired, base_tokens, 0),
        np.where(paired, base_seconds, 0),
    )


def mean(values: Array) -> Estimate:
    """The mean of one score a prompt, with its 95 % interval over prompts.

    Parameters
    ----------
    values : ndarray
        `[prompts]`, from 0 to 1, each a mean over repeats.

    Returns
    -------
    Estimate
        Where every score is right or wrong the interval is Wilson's (1927), which stays sensible
        where none or all are right; else a bootstrap's. None of it without prompts.
    """
    count = len(values)
    if not count:
        return Estimate()
    value = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        return proportion(int(values.sum()), count)
    if count == 1:
        return Estimate(value)
    random = np.random.default_rng(SEED)
    drawn = values[random.integers(count, size=(RESAMPLES, count))].mean(axis=1)
    tail = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))


def proportion(part: int, whole: int) -> Estimate:
    """The share of `part` in `whole` independent trials, at least one, with Wilson's interval."""
    share, squared = part / whole, _DEVIATIONS**2 / whole
    middle = (share + squared / 2) / (1 + squared)
    spread = (squared * (share * (1 - share) + squared / 4)) ** 0.5 / (1 + squared)
    # at 0 and 1 the interval ends there, whatever rounding says
    low = middle - spread if part > 0 else 0.0
    high = middle + spread if part < whole else 1.0
    return Estimate(share, low, high)


def _estimate(tokens: Array, seconds: Array, base_tokens: Array, base_seconds: Array) -> Estimate:
    repeats, prompts = tokens.shape
    parts = (tokens, seconds, base_tokens, base_seconds)
    value = _median(_ratios(*(part.sum(axis=1)[None] for part in parts)))[0]
    if np.isnan(value):
        return Estimate()
    if repeats < MIN_REPEATS:
        return Estimate(float(value))
    random = np.random.default_rng(SEED)
    weights = random.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    drawn = random.integers(repeats, size=(RESAMPLES, repeats))
    ratios = _ratios(*(weights @ part.T for part in parts))
    medians = _median(np.take_along_axis(ratios, drawn, axis=1))
    medians = medians[~np.isnan(medians)]
    tail = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    return Estimate(float(value), float(low), float(high))


def _ratios(tokens: Array, seconds: Array, base_tokens: Array, base_seconds: Array) -> Array:
    """Ratio of throughputs, NaN where either arm has no time or the base no token."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (tokens * base_seconds) / (seconds * base_tokens)
    return np.where((seconds > 0) & (base_seconds > 0) & (base_tokens > 0), ratios, np.nan)


def _median(values: Array) -> Array:
    """Median of each row without its NaNs; NaN for a row of nothing else."""
    known = np.sort(values, axis=1)
    count = (~np.isnan(known)).sum(axis=1, keepdims=True)
    low = np.take_along_axis(known, np.maximum((count - 1) // 2, 0), axis=1)
    high = np.take_along_axis(known, np.minimum(count // 2, known.shape[1] - 1), axis=1)
    high = np.where(count > 0, high, np.nan)
    return np.where(count % 2 == 1, low, (low + high) / 2)[:, 0]
