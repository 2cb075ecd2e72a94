"""Schedules, order and noise: all of them functions of the step's number."""

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from specbench.train.config import TrainConfig
from specbench.train.stages import Stage, noise_of, rows_of, stage_of, stages_of

STAGE = Stage("short", 0, 10, 20, 8, 4, 1e-3)


def test_the_rate_rises_and_falls() -> None:
    rates = [STAGE.rate(step, 0.2) for step in range(10, 30)]
    assert rates[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert rates[4] == 1e-3
    assert all(a > b for a, b in itertools.pairwise(rates[4:]))
    assert 0 < rates[-1] < 2e-5
    assert STAGE.rate(10, 0.0) == 1e-3


def test_stages_follow_each_other() -> None:
    stages = stages_of(TrainConfig(short_steps=3, long_steps=2))
    assert [(s.name, s.begin, s.steps) for s in stages] == [("short", 0, 3), ("long", 3, 2)]
    assert [stage_of(stages, step).name for step in range(5)] == ["short"] * 3 + ["long"] * 2
    assert [s.name for s in stages_of(TrainConfig(short_steps=0))] == ["long"]


def test_every_row_is_taken_once_before_any_comes_again() -> None:
    taken = [row for step in range(10, 25) for row in rows_of(STAGE, step, 10, seed=1)]
    assert len(taken) == 60
    for epoch in range(6):
        assert sorted(taken[epoch * 10 : epoch * 10 + 10]) == list(range(10))
    assert taken[:10] != taken[10:20]
    assert rows_of(STAGE, 12, 10, seed=1) == taken[8:12]
    assert rows_of(STAGE, 12, 10, seed=2) != taken[8:12]


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert sorted(rows_of(STAGE, 10, 2, seed=0)) == [0, 0, 1, 1]


def test_noise_covers_its_range_and_repeats() -> None:
    config = TrainConfig(depth=3)
    drawn = [noise_of(config, step, 0, 4, 10, 16) for step in range(200)]
    assert {noise.lag for noise in drawn} == {1, 2, 3}
    assert set(np.concatenate([noise.offsets for noise in drawn])) == set(range(7))
    again = noise_of(config, 7, 0, 4, 10, 16)
    assert again.lag == drawn[7].lag
    assert np.array_equal(again.offsets, drawn[7].offsets)
    assert not all(
        noise_of(config, step, 1, 4, 10, 16).lag == drawn[step].lag for step in range(20)
    )


def test_noise_can_be_switched_off() -> None:
    config = TrainConfig(flash_noise=False, anchor_offset=False)
    for step in range(20):
        noise = noise_of(config, step, 0, 4, 10, 1000)
        assert noise.lag == 1
        assert not noise.offsets.any()


def test_a_row_as_long_as_the_context_is_not_moved() -> None:
    assert not noise_of(TrainConfig(), 0, 0, 50, 64, 64).offsets.any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"short_steps": 0, "long_steps": 0}, "nothing to do"),
        ({"short_len": 5, "depth": 5}, "short_len must exceed depth"),
        ({"warmup": 1.0}, "less than 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**values)  # type: ignore[arg-type]
