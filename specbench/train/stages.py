"""The stages of a training, and everything random in a step as a function of its number."""

import math
from dataclasses import dataclass

import numpy as np

from specbench.train.config import TrainConfig

_ORDER, _NOISE = 0, 1


@dataclass(frozen=True)
class Stage:
    """A part of a training with rows of one length.

    Attributes
    ----------
    name : str
    index : int
    begin, steps : int
        Its first step, counted over all stages, and how many it has.
    length, batch : int
        Tokens of a row, rows of a step.
    lr : float
        Highest learning rate.
    """

    name: str
    index: int
    begin: int
    steps: int
    length: int
    batch: int
    lr: float

    def rate(self, step: int, warmup: float) -> float:
        """The learning rate of `step`: a linear rise, then half a cosine down to 0."""
        done = step - self.begin
        rising = math.ceil(self.steps * warmup)
        if done < rising:
            return self.lr * (done + 1) / rising
        return self.lr * (1 + math.cos(math.pi * (done - rising) / (self.steps - rising))) / 2


@dataclass(frozen=True)
class Noise:
    """What is random in one forward.

    Attributes
    ----------
    lag : int
        Tokens by which the target's KV lags behind a query.
    offsets : ndarray
        int64 `[B]`, how far each row's positions are moved.
    """

    lag: int
    offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]"


def stages_of(config: TrainConfig) -> list[Stage]:
    """The stages that have steps, in order."""
    stages: list[Stage] = []
    begin = 0
    for index, name in enumerate(("short", "long")):
        steps, length, batch, lr = (
            getattr(config, f"{name}_{field}") for field in ("steps", "len", "batch", "lr")
        )
        if steps:
            stages.append(Stage(name, index, begin, steps, length, batch, lr))
            begin += steps
    return stages


def stage_of(stages: list[Stage], step: int) -> Stage:
    """The stage that `step` belongs to."""
    return next(stage for stage in stages if step < stage.begin + stage.steps)


def rows_of(stage: Stage, step: int, count: int, seed: int) -> list[int]:
    """Which of `count` rows a step takes: each once before any comes again, in random order."""
    first = (step - stage.begin) * stage.batch
    places = range(first, first + stage.batch)
    orders = {
        epoch: np.random.default_rng([seed, _ORDER, stage.index, epoch]).permutation(count)
        for epoch in {place // count for place in places}
    }
    return [int(orders[place // count][place % count]) for place in places]


def noise_of(
    config: TrainConfig, step: int, micro: int, rows: int, length: int, context: int
) -> Noise:
    """The lag and the offsets of forward number `micro` of `step`.

    Parameters
    ----------
    config : TrainConfig
    step, micro : int
    rows, length : int
        Of the forward.
    context : int
        Positions that the target has.
    """
    generator = np.random.default_rng([config.seed, _NOISE, step, micro])
    lag = int(generator.integers(1, config.depth + 1)) if config.flash_noise else 1
    offsets = generator.integers(0, max(context - length, 0) + 1, rows)
    return Noise(lag, offsets if config.anchor_offset else np.zeros_like(offsets))
