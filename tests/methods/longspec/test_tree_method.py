"""LongSpec's trees: exact, each node scored along its own path, in constant memory."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling
from specbench.methods.longspec.ring import Ring
from tests.methods.longspec.dense import draft_logits
from tests.methods.longspec.informed import informed
from tests.support.tiny import GREEDY, autoregressive, decode, prompts, tiny_model

SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=2)
VOCAB = 8
MODELS = {seed: tiny_model(seed, vocab_size=VOCAB) for seed in range(3)}


def path_of(tokens: list[int], parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "num_kv_heads": 1}])
def test_nodes_are_scored_along_their_own_paths_whatever_was_accepted(
    changes: dict[str, object], sampling: Sampling
) -> None:
    model = tiny_model(3, **changes)
    token_ids = dict(enumerate(prompts(3, [4, 18, 37])))
    shape, fed = (2, 3, 4, 2), 9
    method, _ = informed(model, shape, token_ids, 50, sampling, window=9)
    engine = Engine(model, rows=3, max_len=120, spare=method.nodes)
    engine.use(method, sampling)
    for row, ids in token_ids.items():
        engine.admit(row, row, ids, 50)
    accepted = []
    for _ in range(9):
        method.said.clear()
        draft = method.draft(engine.batch)
        said = torch.cat(method.said, 1)
        assert said.shape[1] == 1 + fed
        for row in range(3):
            tokens, parents = draft.tokens[row].tolist(), draft.parents[row].tolist()
            expected = [
                draft_logits(method.block, engine, row, path_of(tokens, parents, node))
                for node in range(-1, fed)
            ]
            torch.testing.assert_close(said[row], torch.stack(expected), rtol=1e-9, atol=1e-9)
        accepted += engine.step().accepted
    assert set(accepted) == {0, 1, 2, 3, 4}


def seen(ring: Ring, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of committed tokens, zeros for the rest."""
    visible = ring.visible(last, 0)[..., None, None]
    parts = (ring.keys[:, : ring.window], ring.values[:, : ring.window])
    return tuple(torch.where(visible, part, 0) for part in parts)  # type: ignore[return-value]


def test_a_ring_after_trees_is_the_ring_that_ids_alone_make() -> None:
    model = tiny_model(4)
    token_ids = dict(enumerate(prompts(4, [3, 21])))
    method, _ = informed(model, (3, 4, 4), token_ids, 60, window=8)
    engine = Engine(model, rows=2, max_len=120, spare=method.nodes)
    engine.use(method, GREEDY)
    for row, ids in token_ids.items():
        engine.admit(row, row, ids, 60)
    batch, ring, total = engine.batch, method.ring, 0
    for _ in range(12):
        total += sum(engine.step().accepted)
        method.catch_up(batch)
        after = seen(ring, batch.lengths)
        ring.keys.fill_(torch.nan)
        ring.values.fill_(torch.nan)
        for row in range(2):
            method.admit(row, batch)
        for ours, rebuilt in zip(after, seen(ring, batch.lengths), strict=True):
            torch.testing.assert_close(ours, rebuilt, rtol=1e-12, atol=1e-12)
        ring.keys.nan_to_num_()
        ring.values.nan_to_num_()
    assert total > 24


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_trees_commit_what_autoregressive_decoding_commits(data: st.DataObject) -> None:
    """At any temperature, token by token; EOS ends a request wherever it falls."""
    model = MODELS[data.draw(st.integers(0, 2), label="model")]
    rows = data.draw(st.integers(1, 4), label="rows")
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=rows + 2))
    new = [data.draw(st.integers(1, 25), label="new") for _ in lengths]
    eos = data.draw(st.sets(st.integers(0, VOCAB - 1), max_size=2), label="eos")
    model.config = replace(model.config, eos_ids=tuple(eos))
    sampling = data.draw(st.sampled_from([GREEDY, SAMPLED]), label="sampling")
    shape = data.draw(SHAPES, label="shape")
    window = len(shape) + data.draw(st.sampled_from([1, 3, 60]), label="window beyond depth")
    token_ids = dict(enumerate(prompts(data.draw(st.integers(0, 99)), lengths, VOCAB)))
    method, expected = informed(model, shape, token_ids, new, sampling, window)
    engine = Engine(model, rows=rows, max_len=120, spare=method.nodes)
    ours = decode(engine, method, list(token_ids.values()), new, sampling)
    assert {index: outcome.output_ids for index, outcome in ours.items()} == expected
    for outcome in ours.values():
        drafted = outcome.drafted or []
        for most, accepted, count in zip(drafted, outcome.accepted, outcome.committed, strict=True):
            assert accepted <= most <= len(shape)
            assert count in (accepted, accepted + 1)
    engine.cache.check_integrity()
    assert engine.cache.free_pages == engine.cache.num_pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_rows_of_a_ragged_batch_are_as_they_are_alone(
    sampling: Sampling, dtype: torch.dtype
) -> None:
    model = tiny_model(7, dtype, 300)
    token_ids = dict(enumerate(prompts(7, [3, 50, 200, 17])))
    method, expected = informed(model, (3, 4, 4, 4), token_ids, 30, sampling, max_len=240)

    def run(rows: int, indices: list[int]) -> dict:
        engine = Engine(model, rows=rows, max_len=240, spare=method.nodes)
        chosen = [token_ids[i] for i in indices]
        return decode(engine, method, chosen, 30, sampling, indices)

    together = run(3, [0, 1, 2, 3])
    for index in token_ids:
        assert together[index].output_ids == expected[index]
        alone = run(1, [index])[index]
        for name in ("output_ids", "drafted", "accepted", "committed"):
            assert getattr(alone, name) == getattr(together[index], name)
    assert max(max(outcome.accepted) for outcome in together.values()) == 4


def test_the_targets_kv_after_trees_is_that_of_a_prefill() -> None:
    model = tiny_model(5)
    prompt = prompts(5, [30])[0]
    method, outputs = informed(model, (3, 5, 5, 5), {0: prompt}, 60)
    engine = Engine(model, rows=1, max_len=120, spare=method.nodes)
    engine.use(method, GREEDY)
    engine.admit(0, 0, prompt, 60)
    assert sum(engine.step().accepted[0] for _ in range(10)) > 15
    length = int(engine.batch.lengths[0])
    fresh = Engine(model, rows=1, max_len=120)
    fresh.use(autoregressive(), GREEDY)
    fresh.admit(0, 0, [*prompt, *outputs[0]][:length], 1)
    for part in ("keys", "values"):
        ours, expected = (
            getattr(tool.cache, part)[:, tool.batch.block_table[0]].flatten(1, 2)[:, :length]
            for tool in (engine, fresh)
        )
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
