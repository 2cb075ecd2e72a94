"""The script that serves mixed requests: what it asks, and what it calls lost, short or too far."""

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from tests.support.vllm import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve_mixed", ROOT / "scripts/serve_mixed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(*ids: int, **near: float) -> dict[str, Any]:
    """An answer whose every token had the given neighbours."""
    named = {f"token_id:{name[1:]}": value for name, value in near.items()}
    return {"ids": list(ids), "near": [named] * len(ids)}


def test_requests_are_mixed_and_fit_the_model(script: ModuleType) -> None:
    made = script.make_requests([list(range(900)), list(range(50))], 200, 1000, seed=0)
    lengths = [len(r["prompt"]) for r in made]
    assert min(lengths) == 1
    assert all(0 < len(r["prompt"]) <= 1000 - r["max_tokens"] for r in made)
    assert sum(len(r["prompt"]) + r["max_tokens"] == 1000 for r in made) >= 5
    assert 0 < sum(r["temperature"] > 0 for r in made) < 100
    assert 0 < sum(r["cancel"] for r in made) < 20
    assert made == script.make_requests([list(range(900)), list(range(50))], 200, 1000, seed=0)


def test_the_first_other_token_is_judged_by_how_likely_it_was_alone(script: ModuleType) -> None:
    solo = answer(1, 2, 3, t1=-0.5, t2=-0.6, t9=-4.0)
    assert script.gap(solo, answer(1, 2, 3)) == 0
    assert script.gap(solo, answer(2, 7, 7)) == pytest.approx(0.1)
    assert script.gap(solo, answer(1, 9, 7)) == pytest.approx(3.5)
    assert script.gap(solo, answer(1, 8, 7)) is None


def test_what_is_lost_short_or_far_is_named(script: ModuleType) -> None:
    requests = [{"max_tokens": 2, "temperature": t, "cancel": False} for t in (0, 0, 0, 0.8, 0)]
    requests.append({"max_tokens": 2, "temperature": 0, "cancel": True})
    solo = [answer(1, 2, t1=-0.5, t3=-0.7)] * 6
    answers = [
        answer(1, 2),
        answer(1, 3),
        {"error": "timed out"},
        answer(5, 6),
        answer(1),
        {"cancelled": True},
    ]
    found = script.judge(requests, solo, answers)
    assert [lost["index"] for lost in found["lost"]] == [2]
    assert found["short"] == [4]
    assert (found["greedy"], found["identical"]) == (2, 1)
    assert found["largest_gap"] == pytest.approx(0.2)
    far = script.judge(requests[:1], solo, [answer(8, 2)])
    assert far["beyond_the_nearest"] == [0]
