"""The bytes of an iteration, against tensors whose sizes are known."""

import pytest

from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling
from specbench.engine.traffic import traffic, weight_bytes
from specbench.methods.base import EngineMethod
from tests.support.tiny import autoregressive, lookup, magicdec, prompts, tiny_model, vegas


def running(method: EngineMethod, lengths: list[int], **shape: object) -> Engine:
    engine = Engine(tiny_model(1, **shape), rows=len(lengths), max_len=120)
    engine.use(method, Sampling())
    for row, ids in enumerate(prompts(1, lengths)):
        engine.admit(row, row, ids, 20)
    return engine


def entry(engine: Engine) -> int:
    """Key and value of a token, in all layers, by the cache itself."""
    _, pages, page, *_ = engine.cache.keys.shape
    return (engine.cache.keys.nbytes + engine.cache.values.nbytes) // (pages * page)


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_counts_where_it_is_the_head(tied: bool) -> None:
    model = tiny_model(1, tie_word_embeddings=tied)
    read = [*model.layers.parameters(), model.final_norm, model.head]
    assert weight_bytes(model) == sum(part.nbytes for part in read)


def test_a_step_without_drafts_reads_weights_and_all_kv() -> None:
    engine = running(autoregressive(), [40, 17])
    found = traffic(engine)
    assert found.draft is None
    # each row writes an entry, and reads it
    assert found.iteration == weight_bytes(engine.model) + entry(engine) * (40 + 17 + 2 * 2)


def test_draft_steps_read_their_selection_and_the_drafts_before() -> None:
    engine = running(vegas(gamma=3, kept_ratio=0.5, min_tokens=4), [40, 17])
    found = traffic(engine)
    # written 1, read the same and those of earlier steps
    steps = [20 + 9 + 2 * (step + 2) for step in range(3)]
    assert found.draft == 3 * weight_bytes(engine.model) + entry(engine) * sum(steps)
    verify = weight_bytes(engine.model) + entry(engine) * (40 + 17 + 2 * 2 * 4)
    assert found.iteration == found.draft + verify


@pytest.mark.parametrize("method", [lookup(gamma=3), magicdec("quest", gamma=3)])
def test_other_drafts_are_not_counted(method: EngineMethod) -> None:
    assert traffic(running(method, [40])) == traffic(running(method, [40]))
    assert traffic(running(method, [40])).iteration is None
