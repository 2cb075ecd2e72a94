"""A synthetic method whose throughput is known, measured with noise and drift."""

import math

import numpy as np

from specbench.methods.vegas import Vegas
from specbench.tune.sample import Sample
from specbench.tune.space import Setting, Space

PROMPTS, STEPS = 8, 60


class CostModel:
    """A machine for `run_step`: acceptance and costs drawn from `seed`, noise on every pass.

    A draft is accepted with probability ``top * (1 - exp(-ratio / scale))``. An iteration takes
    ``1 + verify * gamma + gamma * (fixed + share * ratio)``. A pass is off by `noise` (log-normal)
    and by a slow drift of 5 % that every setting meets.
    """

    def __init__(self, seed: int, noise: float = 0.015) -> None:
        self.random = np.random.default_rng(seed)
        draw = self.random.uniform
        self.top = draw(0.80, 0.97)
        self.scale = math.exp(draw(math.log(0.01), math.log(0.12)))
        self.fixed, self.share, self.verify = draw(0.05, 0.5), draw(0.3, 1.5), draw(0.005, 0.05)
        self.noise = noise
        self.passes: list[Setting] = []

    def throughput(self, setting: Setting) -> float:
        """Without noise, in tokens/s."""
        gamma, p = setting.gamma or 0, self._accepted(setting)
        length = sum(p**i for i in range(gamma + 1))
        cost = 1 + self.verify * gamma + gamma * (self.fixed + self.share * (setting.ratio or 0))
        return 100 * length / cost

    def best(self, space: Space) -> float:
        """The highest throughput of the whole grid."""
        grid = (Setting(ratio, gamma) for ratio in space.ratios for gamma in space.gammas)
        return max(self.throughput(setting) for setting in grid)

    def __call__(self, setting: Setting, repeat: int) -> Sample:
        """One noisy pass."""
        self.passes.append(setting)
        gamma, p = setting.gamma or 0, self._accepted(setting)
        drawn = self.random.geometric(1 - p, size=(PROMPTS, STEPS)).clip(max=gamma + 1)
        histograms = tuple(tuple(np.bincount(row, minlength=gamma + 2).tolist()) for row in drawn)
        drift = 1 + 0.05 * math.sin(len(self.passes) / 15)
        noise = math.exp(self.random.normal(0, self.noise))
        throughput = self.throughput(setting) * drift * noise
        return Sample(throughput, 1000 / throughput, histograms)

    def _accepted(self, setting: Setting) -> float:
        if not setting.gamma:
            return 0.0
        return float(self.top * (1 - math.exp(-(setting.ratio or 0) / self.scale)))


def vegas_space(**changes: object) -> Space:
    """The default space of Vegas."""
    tunable = Vegas.tunable
    values: dict[str, object] = {
        "method": Vegas,
        "budget": tunable.budget,
        "ratios": tunable.ratios,
        "gammas": (0, *tunable.gammas),
        "probe_gamma": tunable.probe_gamma,
        "start": Setting(0.07, 6),
    }
    return Space(**(values | changes))  # type: ignore[arg-type]
