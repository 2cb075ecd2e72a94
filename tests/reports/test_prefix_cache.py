"""Reports on prefix caches: prompts that were seen before make a benchmark look fast."""

from specbench.bench.workload import Workload
from specbench.engine.generate import Progress, Request, generate
from tests.support.every_method import engine_for
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


def workload(token_ids: list[list[int]]) -> Workload:
    info = make_run(prompts=len(token_ids)).datasets[0]
    return Workload(info, [Request(i, str(i), ids, 4) for i, ids in enumerate(token_ids)], [])


def test_prompts_that_repeat_are_a_warning() -> None:
    """vllm PR#10753: one prompt 32 times is a batch of one prompt; its interval says otherwise."""
    assert workload([[1, 2], [1, 3], [1]]).warnings == []
    (line,) = workload([[1, 2]] * 31 + [[1]]).warnings
    assert line.startswith("govreport: 30 of 32 prompts repeat another one")
