"""Reports on prefix caches: prompts that were seen before make a benchmark look fast."""

import pytest

from specbench.bench.workload import Workload
from specbench.engine.engine import Engine
from specbench.engine.generate import Generated, Progress, Request, generate
from specbench.methods.base import EngineMethod
from tests.support.every_method import EVERY, Factory, engine_for, steps_of
from tests.support.records import make_run
from tests.support.tiny import GREEDY, prompts, tiny_model, vegas


def test_a_prompt_that_was_seen_before_is_computed_again() -> None:
    """vllm#54227 (TPOT -34 %), #52884 (86 %): the same cell twice; nothing of the first serves.

    Counted in prompt tokens that went through a forward, beside each other and one after another.
    """
    method = vegas()
    engine = engine_for(method, tiny_model(7), rows=2)
    (ids,) = prompts(7, [75])
    for _ in range(2):
        computed: list[int] = []
        requests = [Request(i, f"item-{i}", ids, 4) for i in range(3)]
        engine.use(method, GREEDY)
        found = list(generate(engine, requests, Progress(prefilled=computed.append)))
        assert computed == [32, 32, 11] * 3
        assert len({tuple(g.output_ids) for g in found}) == 1


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_a_prompt_that_is_kept_says_so_and_changes_nothing(make: Factory) -> None:
    """vllm#52884: what came from a cache is on record, and is the same as if it were computed.

    A pass over prompts that another method left behind: equal outputs, drafts and acceptance.
    """
    model, first, method = tiny_model(7), vegas(), make()
    token_ids = [*prompts(7, [75, 40, 12]), prompts(7, [75])[0]]
    requests = [Request(i, f"item-{i}", ids, 8) for i, ids in enumerate(token_ids)]

    def run(engine: Engine, method: EngineMethod, fresh: bool) -> dict[int, Generated]:
        engine.use(method, GREEDY)
        return {g.request.index: g for g in generate(engine, requests, fresh=fresh)}

    expected = run(engine_for(method, model), method, True)
    assert {g.times.reused_tokens for g in expected.values()} == {0}
    rows, spare = 6, method.nodes
    engine = Engine(model, rows=rows, max_len=100, prefill_chunk=32, spare=spare, keep_prompts=True)
    assert {g.times.reused_tokens for g in run(engine, first, True).values()} == {0}
    method = make()
    found = run(engine, method, False)
    assert steps_of(found) == steps_of(expected)
    tail = method.prompt_tail
    reused = [max(len(ids) - tail, 0) // 16 * 16 for ids in token_ids]
    assert [found[i].times.reused_tokens for i in range(4)] == reused
    assert reused[0] > 0


def workload(token_ids: list[list[int]]) -> Workload:
    info = make_run(prompts=len(token_ids)).datasets[0]
    return Workload(info, [Request(i, str(i), ids, 4) for i, ids in enumerate(token_ids)], [])


def test_prompts_that_repeat_are_a_warning() -> None:
    """vllm PR#10753: one prompt 32 times is a batch of one prompt; its interval says otherwise."""
    assert workload([[1, 2], [1, 3], [1]]).warnings == []
    (line,) = workload([[1, 2]] * 31 + [[1]]).warnings
    assert line.startswith("govreport: 30 of 32 prompts repeat another one")
