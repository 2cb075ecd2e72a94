"""Reports on batches: unequal ends, unequal acceptance, rows without a request."""

import pytest

from specbench.engine.sampling import Sampling
from tests.support.every_method import EVERY, Factory, engine_for, steps_of
from tests.support.tiny import GREEDY, decode, prompts, tiny_model

MODEL = tiny_model(7)
PROMPTS = prompts(7, [10, 20, 40])
NEW = [2, 7, 16]
SAMPLED = ("vegas", "lookup", "specextend, trees", "longspec, chains")
CASES = [(make, GREEDY) for make in EVERY.values()]
CASES += [(EVERY[name], Sampling(0.8, 0.95, seed=3)) for name in SAMPLED]


@pytest.mark.parametrize(
    ("make", "sampling"), CASES, ids=[*EVERY, *(f"{name}, sampled" for name in SAMPLED)]
)
def test_a_batch_does_not_end_with_its_first_finisher(make: Factory, sampling: Sampling) -> None:
    """transformers PR#32189, MagicDec#3: outputs of 2, 7 and 16 tokens; each as it is alone.

    The batch has five rows, as a captured graph of a larger batch would: the two without a request
    neither count as running nor change anything.
    """
    method = make()
    together = decode(engine_for(method, MODEL, rows=5), method, PROMPTS, NEW, sampling)
    assert [len(together[i].output_ids) for i in range(3)] == NEW
    for index, ids in enumerate(PROMPTS):
        method = make()
        engine = engine_for(method, MODEL, rows=1)
        alone = decode(engine, method, [ids], NEW[index], sampling, indices=[index])
        assert steps_of(alone)[index] == steps_of(together)[index]
    assert together[0].times.steps.running == [3] * len(together[0].committed)
    assert together[2].times.steps.running[-1] == 1
