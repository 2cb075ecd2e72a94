"""An iteration of any method could be captured: nothing in it waits for the host."""

import pytest
import torch

pytest.importorskip("triton")

from specbench.config import AttentionBackend
from specbench.engine.engine import Engine
from specbench.engine.iteration import iterate
from specbench.engine.sampling import Sampling
from specbench.methods.base import EngineMethod
from specbench.methods.draft_model.drafter import Drafter
from tests.support.buffers import DEVICE
from tests.support.capture import no_host_decisions
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    decode,
    magicdec,
    prompts,
    self_tree,
    specextend,
    stream_draft,
    tiny_model,
    with_draft,
)

LENGTHS = [37, 21]


def methods() -> dict[str, EngineMethod]:
    """Those that choose within an iteration."""
    small = tiny_model(9, torch.float32, 96, num_layers=1).to(DEVICE)
    trees: dict[str, object] = {"nodes": 4, "depth": 3}
    return {
        "quest": magicdec("quest", gamma=2),
        "stream": magicdec("stream", gamma=2),
        "stream, relative": magicdec("stream", gamma=2, positions="cache-relative"),
        "stream, a small model": stream_draft(small, gamma=2),
        "specextend": specextend(gamma=2),
        "specextend, all rows": specextend(gamma=2, collect="full"),
        "specextend, in trees": self_tree(**trees, collect="full"),
        "specextend, a small model": with_draft(small, **trees),
    }


SAMPLED = Sampling(0.8, 0.95, 20, seed=3)
CASES = [(name, GREEDY) for name in methods()] + [("specextend, in trees", SAMPLED)]


def make(name: str, backend: AttentionBackend, sampling: Sampling = GREEDY) -> Engine:
    """An engine of three rows, of which two decode."""
    method = methods()[name]
    model = tiny_model(8, torch.float32, 96).to(DEVICE)
    engine = Engine(model, rows=3, max_len=80, spare=method.nodes, backend=backend)
    engine.use(method, sampling)
    for row, ids in enumerate(prompts(8, LENGTHS)):
        engine.admit(row, row, ids, 25)
    return engine


@pytest.mark.parametrize(("name", "sampling"), CASES)
def test_nothing_is_decided_by_the_host(
    name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(name, "triton", sampling)
    assert engine.method.capturable
    assert engine.compute.capturable
    # where the host may look, trees stop growing when all are complete
    monkeypatch.setattr(engine, "graph_mode", lambda method: "full")
    with no_host_decisions():
        iterate(engine)


@pytest.mark.parametrize("name", methods())
def test_steps_are_the_references_and_choose_nothing_while_frozen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, reference = make(name, "triton"), make(name, "sdpa")
    plain = Engine(reference.model, rows=2, max_len=80)
    expected = decode(plain, autoregressive(), prompts(8, LENGTHS), 25)
    steps = [engine.step()]
    # what was drafted and accepted, too
    assert steps == [reference.step()]
    engine.frozen = True
    with monkeypatch.context() as patch:
        for choose in ("select_pages", "select_slots", "weigh", "row_weights"):
            patch.setattr(engine.compute, choose, refuse)
        patch.setattr(Drafter, "gather", refuse)
        steps.append(engine.step())
    engine.frozen = False
    steps.append(engine.step())
    for row in range(2):
        ids = [token for step in steps for token in step.tokens[row]]
        assert ids == expected[row].output_ids[1 : 1 + len(ids)]


def refuse(*args: object) -> None:
    """Stands in for a choice."""
    raise AssertionError("a choice")
