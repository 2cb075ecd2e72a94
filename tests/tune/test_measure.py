"""Passes on one engine: which settings it holds, and what a failing one gives back."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.config import RunConfig
from specbench.engine.engine import Engine
from specbench.engine.generate import Request
from specbench.errors import OutOfMemoryError
from specbench.methods.base import EngineMethod
from specbench.tune.measure import EngineMeasure
from specbench.tune.space import Setting, Space
from tests.support.cost_model import vegas_space
from tests.support.tiny import prompts, tiny_model

ONE, TWO, THREE = (Setting(0.3, gamma) for gamma in (1, 2, 3))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[EngineMethod]:
    """Every method that was built for a setting, in order."""
    build, found = Space.build, []

    def kept(space: Space, setting: Setting, config: RunConfig) -> EngineMethod:
        found.append(build(space, setting, config))
        return found[-1]

    monkeypatch.setattr(Space, "build", kept)
    return found


@pytest.fixture
def measure() -> EngineMeasure:
    engine = Engine(tiny_model(), rows=2, max_len=64, keep_prompts=True)
    host: Any = SimpleNamespace(engine=engine, plan=SimpleNamespace(rows=2))
    config = RunConfig(min_tokens=2, device="cpu", dtype="float64")
    requests = [Request(i, f"p{i}", ids, 6) for i, ids in enumerate(prompts(1, (30, 30)))]
    return EngineMeasure(host, vegas_space(), config, requests)


def test_settings_that_take_turns_stay_bound_and_older_ones_are_freed(
    built: list[EngineMethod], measure: EngineMeasure
) -> None:
    engine = measure.engine
    for setting in (ONE, TWO, TWO, ONE):
        measure(setting, 0)
    assert [method.gamma for method in built] == [1, 2]
    assert all(method.is_bound_to(engine) for method in built)
    measure(THREE, 0)
    assert [method.is_bound_to(engine) for method in built] == [True, False, True]
    measure.close()
    assert not any(method.is_bound_to(engine) for method in built)


def test_a_setting_that_fails_gives_its_memory_back(
    built: list[EngineMethod], measure: EngineMeasure, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(ONE, 0)

    def fail(*_: object) -> None:
        raise OutOfMemoryError("9 GiB are missing")

    step = Engine.launch
    monkeypatch.setattr(Engine, "launch", fail)
    with pytest.raises(OutOfMemoryError):
        measure(TWO, 0)
    assert [method.is_bound_to(measure.engine) for method in built] == [True, False]
    monkeypatch.setattr(Engine, "launch", step)
    assert measure(TWO, 0).throughput > 0
    assert [method.gamma for method in built] == [1, 2, 2]


def test_what_was_measured_does_not_keep_the_engine(measure: EngineMeasure) -> None:
    measure(ONE, 0)
    assert measure._forced.engine is measure.engine
    engine = weakref.ref(measure.engine)
    measure.close()
    measure.host.engine = None  # type: ignore[misc]
    gc.collect()
    assert engine() is None


def test_every_prompt_is_prefilled_once(
    measure: EngineMeasure, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(ONE, 0)
    reused = []
    admit = Engine.admit

    def watched(engine: Engine, row: int, *arguments: Any) -> int:
        first = admit(engine, row, *arguments)
        reused.append(engine.pages.reused(row))
        return first

    monkeypatch.setattr(Engine, "admit", watched)
    measure(TWO, 0)
    assert reused == [16, 16], "the full pages of 30 tokens"
