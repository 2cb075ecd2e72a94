"""SpecExtend's trees where the target drafts for itself."""

import pytest
import torch

from specbench.bench.arms import build_arms
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.errors import UsageError
from specbench.methods.specextend.self_tree import SelfTree
from tests.support.dense import dense_logits
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, decode, prompts, self_tree, tiny_model


def test_with_everything_kept_the_tree_holds_the_targets_path() -> None:
    model = tiny_model(1)
    engine = Engine(model, rows=2, max_len=120, spare=8)
    method = self_tree(top_chunks=99, nodes=8, depth=5, threshold=0.0)
    outcomes = decode(engine, method, prompts(1, [40, 23]), 31)
    for outcome in outcomes.values():
        assert outcome.drafted is not None
        assert sum(outcome.accepted) > 0.8 * sum(outcome.drafted)
        assert max(outcome.accepted) > 2


def test_levels_are_what_the_target_says_after_each_path() -> None:
    model = tiny_model(2)
    engine = Engine(model, rows=3, max_len=120, spare=6)
    method = self_tree(top_chunks=99)
    engine.use(method, GREEDY)
    tokens = {}
    for row, ids in enumerate(prompts(2, [40, 23])):
        tokens[row] = [*ids, engine.admit(row, row, ids, 40)]
    for _ in range(3):
        method.drafter.gather(method.retrieval.kept(method.known(engine.batch)))
        logits = method.drafter.catch_up(1)
        first = torch.tensor([[3, 5], [8, 1], [0, 0]])
        itself = torch.eye(2, dtype=torch.bool).expand(3, 2, 2)
        after = method.drafter.level(first, 1, itself)
        for row, ids in tokens.items():
            torch.testing.assert_close(logits[row], dense_logits(model, ids)[-1])
            for node in range(2):
                path = [*ids, int(first[row, node])]
                torch.testing.assert_close(after[row, node], dense_logits(model, path)[-1])
        for row, new in enumerate(engine.step().tokens[:2]):
            tokens[row] += new


def test_its_arm_and_settings() -> None:
    def arms(**settings: object) -> list:
        given = {"method": "specextend", "baseline": False, "drafts": "tree"}
        return build_arms(build_config(given | settings))

    (arm,) = arms(depth=4)
    assert isinstance(arm.method, SelfTree)
    shown = {name: arm.info.parameters[name] for name in ("drafts", "nodes", "gamma")}
    assert shown == {"drafts": "tree", "nodes": 50, "gamma": 4}
    with pytest.raises(UsageError, match="--gamma is no setting of specextend"):
        arms(gamma=4)


def test_the_planned_memory_covers_what_is_held() -> None:
    model = tiny_model(7, torch.float32, 4096)
    engine = Engine(model, rows=3, max_len=4000, spare=6)
    method = self_tree(chunk=32, top_chunks=60, interval=4)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    batch = engine.batch
    for row in range(3):
        batch.reserve(row, engine.cache.allocate(4006))
        batch.admit(row, row, 3900, 1, 90)
        method.admit(row, batch)
    working = method.drafter.working
    kept = sum(part.nbytes for part in (working.keys, working.values))
    peak = peak_bytes(lambda: method.drafter.gather(method.retrieval.kept(batch.lengths)))
    assert kept + peak <= planned
    assert planned < 4 * (kept + peak)
