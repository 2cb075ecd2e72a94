"""The objective of steps 2 and 3: a candidate against the current best, in turns."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.config import Goal
from specbench.tune.sample import Measure, Sample
from specbench.tune.space import Setting

PENALTY = 0.5
"""Standard errors that a value lies below its median."""

HOPELESS = 0.15
"""A candidate that is behind by this share after its first pair is not repeated."""

TIE, LARGEST_TIE = 0.005, 0.01
"""Settings closer than their noise are tied, but at least and at most within these shares."""

_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Scored:
    """A setting's value.

    Attributes
    ----------
    merit : float
        The penalised median, large is good; comparable between trials of a study.
    noise : float or None
        Standard error of the median as a share of it; None after a single pair.
    samples : tuple of Sample
        The candidate's own passes.
    """

    merit: float
    noise: float | None
    samples: tuple[Sample, ...]

    @property
    def throughput(self) -> float:
        """Median over its own passes, in tokens/s."""
        return statistics.median(sample.throughput for sample in self.samples)

    @property
    def tpot_ms(self) -> float:
        """Median over its own passes."""
        return statistics.median(sample.tpot_ms for sample in self.samples)


@dataclass(frozen=True)
class Best:
    """The best setting so far and its merit."""

    setting: Setting
    merit: float


def score(
    setting: Setting, best: Best | None, measure: Measure, repeats: int, goal: Goal
) -> Scored:
    """Measure `setting`, in turns with the best so far.

    Pairs run A B, B A, A B, ..., so that what drifts steadily cancels. The value is the best's
    merit times the median ratio of the pairs, less the ratio's standard error
    (1.4826 MAD / sqrt(n)). Without a best the setting is measured alone.
    """
    samples: list[Sample] = []
    ratios: list[float] = []
    for repeat in range(repeats):
        if best is None:
            samples.append(measure(setting, repeat))
            ratios.append(samples[-1].merit(goal))
            continue
        order = (setting, best.setting) if repeat % 2 == 0 else (best.setting, setting)
        passes = [measure(each, repeat) for each in order]
        own, reference = passes if repeat % 2 == 0 else reversed(passes)
        samples.append(own)
        ratios.append(own.merit(goal) / reference.merit(goal))
        if ratios[0] < 1 - HOPELESS:
            break
    middle = statistics.median(ratios)
    noise = standard_error(ratios)
    scale = 1.0 if best is None else best.merit
    return Scored(
        merit=scale * middle * (1 - PENALTY * (noise or 0.0)), noise=noise, samples=tuple(samples)
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Of the median, as a share of it; None for a single value."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    return _MAD_TO_SIGMA * mad / len(values) ** 0.5 / middle


def tie_margin(noise: float | None) -> float:
    """Share below the best within which a setting counts as equal to it."""
    return min(max(noise or 0.0, TIE), LARGEST_TIE)


def choose(scored: dict[Setting, tuple[float, float | None]]) -> Setting | None:
    """The smallest setting among those tied with the best.

    Parameters
    ----------
    scored : dict
        Merit and noise of each setting.
    """
    if not scored:
        return None
    top = max(scored, key=lambda setting: scored[setting][0])
    merit, noise = scored[top]
    floor = merit * (1 - tie_margin(noise))
    return min((s for s in scored if scored[s][0] >= floor), key=lambda s: s.size)
