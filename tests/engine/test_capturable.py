"""An iteration of any method could be captured: nothing in it waits for the host."""

import pytest
import torch

pytest.importorskip("triton")

from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling
from specbench.methods.base import EngineMethod
from tests.support.buffers import DEVICE
from tests.support.capture import no_host_decisions
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    decode,
    magicdec,
    prompts,
    tiny_model,
)

LENGTHS = [45, 21]


def methods() -> dict[str, EngineMethod]:
    """Those that choose within an iteration."""
    return {"quest": magicdec("quest")}


def make(name: str, sampling: Sampling = GREEDY) -> tuple[Engine, EngineMethod]:
    """An engine of three rows, of which two decode."""
    method = methods()[name]
    model = tiny_model(8, torch.float32, 96, num_layers=2).to(DEVICE)
    engine = Engine(model, rows=3, max_len=80, spare=method.nodes, backend="triton")
    engine.use(method, sampling)
    for row, ids in enumerate(prompts(8, LENGTHS)):
        engine.admit(row, row, ids, 25)
    return engine, method


@pytest.mark.parametrize("name", methods())
def test_nothing_is_decided_by_the_host(name: str) -> None:
    engine, method = make(name)
    assert method.capturable
    assert engine.compute.capturable
    engine.iterate()
    with no_host_decisions():
        engine.iterate()


@pytest.mark.parametrize("name", methods())
def test_frozen_iterations_choose_nothing_and_stay_lossless(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make(name)
    plain = Engine(engine.model, rows=2, max_len=80)
    expected = decode(plain, autoregressive(), prompts(8, LENGTHS), 25)
    ids: list[list[int]] = [[], []]

    def step() -> None:
        for row, new in enumerate(engine.step().tokens[:2]):
            ids[row] += new

    step()
    engine.frozen = True
    with monkeypatch.context() as patch:
        for choose in ("select_pages", "select_slots", "weigh", "row_weights"):
            patch.setattr(engine.compute, choose, refuse)
        for _ in range(2):
            step()
    engine.frozen = False
    step()
    for row in range(2):
        assert ids[row] == expected[row].output_ids[1 : 1 + len(ids[row])]


def refuse(*args: object) -> None:
    raise AssertionError("a choice")
