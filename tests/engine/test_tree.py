"""Trees of drafts: exact at any temperature, whatever their shape; no trace in the KV."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine import tree as tree_module
from specbench.engine.batch import Batch
from specbench.engine.engine import Engine
from specbench.engine.forward import TreeAttention
from specbench.engine.iteration import iterate
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.reference_compute import ReferenceCompute
from specbench.engine.sampling import Sampling
from specbench.engine.tree import build_tree, compact
from specbench.methods.base import TreeDraft
from tests.support.capture import no_host_decisions
from tests.support.tiny import GREEDY, autoregressive, decode, prompts, tiny_config, tiny_model
from tests.support.trees import RandomTrees, TreeParameters

VOCAB = 8
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=4)
MODELS = {seed: tiny_model(seed, vocab_size=VOCAB) for seed in range(3)}


def check(
    model: Transformer,
    token_ids: list[list[int]],
    new: list[int],
    sampling: Sampling = GREEDY,
    rows: int | None = None,
    **shape: object,
) -> list[int]:
    """Equal to autoregressive decoding, token by token; what every step accepted."""
    rows = rows or len(token_ids)
    base = decode(Engine(model, rows=rows, max_len=120), autoregressive(), token_ids, new, sampling)
    parameters = TreeParameters(**shape)  # type: ignore[arg-type]
    known = {i: [*token_ids[i], *base[i].output_ids] for i in base}
    method = RandomTrees(parameters, known, VOCAB)
    engine = Engine(model, rows=rows, max_len=120, spare=parameters.nodes)
    ours = decode(engine, method, token_ids, new, sampling)
    engine.cache.check_integrity()
    steps = []
    for index, expected in base.items():
        found = ours[index]
        assert found.output_ids == expected.output_ids
        assert found.finish_reason == expected.finish_reason
        for drafted, accepted, committed in zip(
            found.drafted or [], found.accepted, found.committed, strict=True
        ):
            assert accepted <= drafted <= parameters.gamma
            assert committed in (accepted, accepted + 1)
        steps += found.accepted
    return steps


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_trees_commit_what_autoregressive_decoding_commits(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, rows + 2))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    new = data.draw(st.lists(st.integers(1, 25), min_size=count, max_size=count))
    model = MODELS[data.draw(st.integers(0, 2))]
    eos = data.draw(st.sets(st.integers(0, VOCAB - 1), max_size=2))
    model.config = replace(model.config, eos_ids=tuple(eos))
    sampling = data.draw(st.sampled_from([GREEDY, SAMPLED]))
    gamma = data.draw(st.integers(1, 6))
    nodes = data.draw(st.integers(1, 14))
    seed = data.draw(st.integers(0, 1000))
    ids = prompts(seed, lengths, VOCAB)
    check(model, ids, new, sampling, rows, gamma=gamma, nodes=nodes, seed=seed)


@pytest.fixture
def plain() -> Transformer:
    return tiny_model(5, vocab_size=VOCAB)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_deep_paths_are_accepted(plain: Transformer, sampling: Sampling) -> None:
    steps = check(
        plain, prompts(1, [30, 9], VOCAB), [60, 60], sampling, gamma=7, nodes=12, hits=0.95
    )
    assert max(steps) == 7
    assert sum(steps) / len(steps) > 2


def test_rows_of_a_ragged_batch_are_as_they_are_alone(plain: Transformer) -> None:
    token_ids = prompts(2, [33, 4, 17, 50], VOCAB)
    shape = TreeParameters(gamma=7, nodes=12)
    base = decode(Engine(plain, rows=1, max_len=120), autoregressive(), token_ids, 40)
    known = {i: [*token_ids[i], *base[i].output_ids] for i in base}

    def run(rows: int, indices: list[int]) -> dict:
        engine = Engine(plain, rows=rows, max_len=120, spare=12)
        chosen = [token_ids[i] for i in indices]
        return decode(engine, RandomTrees(shape, known, VOCAB), chosen, 40, SAMPLED, indices)

    together = run(4, [0, 1, 2, 3])
    for index in range(4):
        alone = run(1, [index])[index]
        for name in ("output_ids", "drafted", "accepted", "committed"):
            assert getattr(alone, name) == getattr(together[index], name)


def check_committed_kv(model: Transformer) -> None:
    """The cache holds what a fresh prefill of the committed tokens would write."""
    prompt = prompts(4, [30], VOCAB)[0]
    base = decode(Engine(model, rows=1, max_len=120), autoregressive(), [prompt], 60)[0]
    method = RandomTrees(
        TreeParameters(gamma=5, nodes=11, seed=3), {0: [*prompt, *base.output_ids]}, VOCAB
    )
    engine = Engine(model, rows=1, max_len=120, spare=11)
    engine.use(method, GREEDY)
    output, accepted = [engine.admit(0, 0, prompt, 60)], 0
    for _ in range(12):
        result = engine.step()
        output += result.tokens[0]
        accepted += result.accepted[0]
    assert accepted > 8
    committed = prompt + output[:-1]
    fresh = Engine(model, rows=1, max_len=120)
    fresh.use(autoregressive(), GREEDY)
    fresh.admit(0, 0, committed, 1)
    for part in ("keys", "values"):
        read = [
            getattr(tool.cache, part)[:, tool.batch.block_table[0]].flatten(1, 2)
            for tool in (engine, fresh)
        ]
        n = len(committed)
        torch.testing.assert_close(read[0][:, :n], read[1][:, :n], rtol=1e-9, atol=1e-9)


def test_committed_kv_equals_a_fresh_prefill(plain: Transformer) -> None:
    check_committed_kv(plain)


def no_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "compact", lambda *args: None)


def every_node_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeing(*args: object) -> tree_module.Tree:
        made = build_tree(*args)  # type: ignore[arg-type]
        return replace(made, mask=torch.ones_like(made.mask).tril())

    monkeypatch.setattr(tree_module, "build_tree", seeing)


def positions_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ReferenceCompute.hidden

    def moved(
        self: ReferenceCompute, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        if isinstance(attention, TreeAttention):
            positions = positions[:, :1] + torch.arange(positions.shape[1])
        return hidden(self, tokens, positions, attention)

    monkeypatch.setattr(ReferenceCompute, "hidden", moved)


def write_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deepest first, each moved before the next is read: a target may be another's source."""

    def one_by_one(
        cache: KVCache, batch: Batch, path: torch.Tensor, accepted: torch.Tensor
    ) -> None:
        for step in reversed(range(path.shape[1])):
            only = (accepted > step).long()
            shifted = replace_lengths(batch, batch.lengths + step)
            compact(cache, shifted, path[:, step : step + 1] - step, only)

    monkeypatch.setattr(tree_module, "compact", one_by_one)


def replace_lengths(batch: Batch, lengths: torch.Tensor) -> Batch:
    other = object.__new__(Batch)
    vars(other).update(vars(batch) | {"lengths": lengths})
    return other


@pytest.mark.parametrize(
    "mutate", [no_compaction, every_node_sees_all, positions_by_index, write_while_reading]
)
def test_each_mutant_is_caught(
    plain: Transformer,
    mutate: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check_committed_kv(plain)


def test_the_shape_of_a_tree() -> None:
    draft = TreeDraft(
        torch.tensor([[5, 6, 7, 8, 9, 1]]),
        torch.tensor([[-1, 0, -1, 1, 3, 2]]),
        torch.tensor([5]),
    )
    tree = build_tree(torch.tensor([3]), draft, torch.tensor([9]), 3)
    assert tree.tokens.tolist() == [[3, 5, 6, 7, 8, 9, 1]]
    assert tree.depth[0, :5].tolist() == [0, 1, 2, 1, 3]
    # node 4 is too deep, and node 5 is no draft
    assert tree.valid.tolist() == [[True, True, True, True, True, False, False]]
    assert tree.mask[0, 4].tolist() == [True, True, True, False, True, False, False]
    assert tree.mask[0, 3].tolist() == [True, False, False, True, False, False, False]
    shallow = build_tree(torch.tensor([3]), draft, torch.tensor([1]), 3)
    assert shallow.valid.tolist() == [[True, True, False, True, False, False, False]]


def test_memory_that_no_node_wrote_is_never_read(plain: Transformer) -> None:
    prompt = prompts(6, [20], VOCAB)
    base = decode(Engine(plain, rows=2, max_len=60), autoregressive(), prompt, 30)[0].output_ids
    engine = Engine(plain, rows=2, max_len=60, spare=9)
    engine.cache.keys.fill_(torch.nan)
    engine.cache.values.fill_(torch.nan)
    method = RandomTrees(TreeParameters(), {0: [*prompt[0], *base]}, VOCAB)
    assert decode(engine, method, prompt, 30)[0].output_ids == base


def test_a_tree_larger_than_the_spare_entries_is_refused(plain: Transformer) -> None:
    engine = Engine(plain, rows=1, max_len=60, spare=8)
    with pytest.raises(ValueError, match="trees of 9 nodes: make the engine with spare=9, not 8"):
        engine.use(RandomTrees(TreeParameters(), {}, VOCAB), GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_nothing_is_decided_by_the_host(sampling: Sampling) -> None:
    """All but the model's forward, whose reference kernels read lengths."""
    engine = Engine(tiny_model(7), rows=3, max_len=60, spare=9)
    draft = TreeDraft(torch.ones(3, 9).long(), torch.arange(-1, 8).repeat(3, 1))
    engine.use(RandomTrees(TreeParameters(), {}, VOCAB), sampling)
    engine.method.draft = lambda batch: draft  # type: ignore[method-assign]
    for row, ids in enumerate(prompts(8, [40, 21])):
        engine.admit(row, row, ids, 20)
    width = tiny_config().hidden_size
    hidden = torch.zeros(3, 10, width, dtype=engine.dtype)
    engine.compute.hidden = lambda *args: hidden  # type: ignore[method-assign]
    with no_host_decisions():
        iterate(engine)
