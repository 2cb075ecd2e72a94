"""Which chunks SpecExtend's drafts read, and when they are chosen."""

import pytest
import torch
from pydantic import ValidationError

from specbench.bench.arms import build_arms
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.engine.iteration import iterate
from specbench.engine.sampling import Sampling
from specbench.errors import UsageError
from specbench.methods.base import EngineMethod
from specbench.methods.specextend.retrieval import Retrieval
from tests.support.capture import no_host_decisions
from tests.support.dense import keys_and_queries
from tests.support.memory import peak_bytes
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    decode,
    prompts,
    specextend,
    tiny_model,
)
from tests.support.trees import RandomTrees, TreeParameters

VOCAB = 8


class TreeExtend(RandomTrees):
    """Random trees with SpecExtend's retrieval beside them."""

    def bind(self, engine: Engine) -> None:
        super().bind(engine)
        self.retrieval = Retrieval(engine, 4, 2, self.collect, lambda n: torch.full_like(n, 3), 3)

    def tap(self, batch: object) -> object:
        return self.retrieval.watch(self.engine.batch)

    def admit(self, row: int, batch: object) -> None:
        self.retrieval.admit(row, self.engine.batch)

    def observe(self, batch: object) -> None:
        self.retrieval.observe(self.engine.batch)


def means(engine: Engine, tokens: list[int], chunk: int) -> torch.Tensor:
    """Mean weight of each chunk for the last token in the last layer, by definition."""
    keys, queries = keys_and_queries(engine, tokens)[-1]
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    logits = torch.einsum("hd,khd->hk", queries[-1], keys) * engine.scale
    weights = logits.softmax(-1).mean(0)
    return torch.stack([part.mean() for part in weights.split(chunk)])


def check_choices(engine: Engine, method: EngineMethod, sampling: Sampling = GREEDY) -> int:
    """Every choice against the definition, for two rows that began at different times."""
    retrieval: Retrieval = method.retrieval  # type: ignore[attr-defined]
    lengths = [50, 23]
    whole = {}
    accepted = 0
    for begun, row in enumerate((1, 0)):
        ids = prompts(row, [lengths[row]], VOCAB)[0]
        whole[row] = [*ids, engine.admit(row, row, ids, 60)]
        chosen = [c for c in retrieval.chunks[row].tolist() if c >= 0]
        assert sorted(chosen) == list(range(-(-len(ids) // 4) - 3, -(-len(ids) // 4)))
        for step in range(5):
            before = retrieval.chunks.clone(), retrieval.scored.clone()
            result = engine.step()
            accepted += sum(result.accepted)
            for r in whole:
                whole[r] += result.tokens[r]
                mine = step if r == row else step + 5 * begun
                if mine % 2:
                    assert torch.equal(before[0][r], retrieval.chunks[r])
                    assert before[1][r] == retrieval.scored[r]
                    continue
                committed = whole[r][:-1]
                assert retrieval.scored[r] == len(committed)
                best = means(engine, committed, 4).topk(3).indices.tolist()
                assert sorted(retrieval.chunks[r].tolist()) == sorted(best)
    return accepted


@pytest.mark.parametrize("collect", ["cheap", "full"])
def test_chunks_are_chosen_by_the_deepest_accepted_drafts_row(collect: str) -> None:
    engine = Engine(tiny_model(1, vocab_size=VOCAB), rows=2, max_len=120)
    method = specextend(collect=collect)
    engine.use(method, GREEDY)
    assert check_choices(engine, method) > 5


@pytest.mark.parametrize("collect", ["cheap", "full"])
def test_of_trees_too(collect: str) -> None:
    model = tiny_model(1, vocab_size=VOCAB)
    ids = {row: prompts(row, [length], VOCAB)[0] for row, length in enumerate((50, 23))}
    base = decode(Engine(model, rows=2, max_len=120), autoregressive(), list(ids.values()), 60)
    known = {row: [*ids[row], *base[row].output_ids] for row in ids}
    method = TreeExtend(TreeParameters(gamma=4, nodes=9), known, VOCAB)
    method.collect = collect  # type: ignore[attr-defined]
    engine = Engine(model, rows=2, max_len=120, spare=9)
    engine.use(method, GREEDY)
    assert check_choices(engine, method) > 5


def test_what_came_after_the_scores_is_read() -> None:
    engine = Engine(tiny_model(2), rows=1, max_len=90)
    method = specextend(gamma=2, interval=3, top_chunks=2)
    engine.use(method, GREEDY)
    engine.admit(0, 0, prompts(2, [30])[0], 50)
    seen: list[set[int]] = []
    hidden = engine.compute.hidden

    def watched(tokens: torch.Tensor, positions: torch.Tensor, attention: object) -> torch.Tensor:
        if hasattr(attention, "tail"):
            slots = [*attention.selected[0, 0, 0].tolist(), *attention.tail[0].tolist()]
            table = engine.batch.block_table[0].tolist()
            seen.append({table.index(s // 16) * 16 + s % 16 for s in slots if s >= 0})
        return hidden(tokens, positions, attention)  # type: ignore[arg-type]

    engine.compute.hidden = watched  # type: ignore[method-assign]
    for _ in range(8):
        seen.clear()
        n = int(engine.batch.lengths[0])
        scored = int(method.retrieval.scored[0])
        chunks = [c for c in method.retrieval.chunks[0].tolist() if c >= 0]
        engine.step()
        old = {4 * c + i for c in chunks for i in range(4) if 4 * c + i < scored}
        assert seen == [old | set(range(scored, n + 1 + step)) for step in range(2)]


def test_nothing_of_a_request_reaches_the_next() -> None:
    engine = Engine(tiny_model(3), rows=1, max_len=120)
    method = specextend()
    long, short = prompts(3, [80, 9])
    both = decode(engine, method, [long, short], 20)
    alone = decode(
        Engine(tiny_model(3), rows=1, max_len=120), specextend(), [short], 20, indices=[1]
    )
    assert both[1].accepted == alone[1].accepted


@pytest.mark.parametrize(
    ("settings", "length", "entries"),
    [
        ({"chunk": 32, "top_chunks": 32}, 30_000, 1024),
        ({"chunk": 32, "top_chunks": 32}, 400, 400),
        ({"chunk": 32, "kept_ratio": 0.05}, 30_000, 1504),
        ({"chunk": 32, "kept_ratio": 0.05}, 1000, 64),
        ({"chunk": 32, "kept_ratio": 0.05, "min_tokens": 10}, 1000, 64),
        ({"chunk": 16, "kept_ratio": 0.05, "min_tokens": 10}, 100, 16),
    ],
)
def test_how_many_are_kept(settings: dict, length: int, entries: int) -> None:
    assert specextend(**settings).entries_read(length) == entries


def test_arms_and_their_settings() -> None:
    def arms(**settings: object) -> list:
        config = build_config({"method": "specextend", "baseline": False, **settings})
        return build_arms(config)

    assert [arm.name for arm in arms()] == ["specextend"]
    both = arms(collect="all", kept_ratio=0.05)
    assert [arm.name for arm in both] == ["specextend-cheap", "specextend-full"]
    assert [arm.info.parameters["collect"] for arm in both] == ["cheap", "full"]
    assert "top_chunks" not in both[0].info.parameters
    report = arms()[0].info.parameters
    assert (report["gamma"], report["chunk"], report["top_chunks"]) == (6, 32, 32)
    assert report["interval"] == 4
    with pytest.raises(UsageError, match=r"specextend: .*leave one out"):
        arms(top_chunks=4, kept_ratio=0.1)
    with pytest.raises(ValidationError, match="leave one out"):
        specextend(top_chunks=4, kept_ratio=0.1)


@pytest.mark.parametrize("collect", ["cheap", "full"])
def test_the_planned_memory_covers_what_is_held(
    collect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one row over the context takes less than the prefill's chunks, which the plan counts
    engine = Engine(tiny_model(7, torch.float32, 4096), rows=3, max_len=4000)
    monkeypatch.setattr(engine.compute, "weigh", lambda *args: None)
    method = specextend(collect=collect, chunk=32, top_chunks=20, interval=4)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    batch = engine.batch
    for row in range(3):
        batch.reserve(row, engine.cache.allocate(4000))
        batch.admit(row, row, 3900, 1, 90)
        method.admit(row, batch)

    def step() -> None:
        tap = method.tap(batch)
        assert tap is not None
        attention = Verified(engine)
        tap(1, torch.zeros(3, 4, 4, 8), attention)  # type: ignore[arg-type]
        batch.lengths += 1
        method.observe(batch)
        batch.slots(*method.retrieval.entries())

    kept = sum(t.nbytes for t in vars(method.retrieval).values() if isinstance(t, torch.Tensor))
    peak = peak_bytes(step)
    assert kept + peak <= planned
    assert planned < 6 * (kept + peak)


class Verified:
    """A verification's attention, as far as a tap looks at it."""

    def __init__(self, engine: Engine) -> None:
        self.cache, self.block_table = engine.cache, engine.batch.block_table
        self.kv_lens = engine.batch.lengths + 4
        self.q_lens = torch.full((3,), 4)
        self.scale = engine.scale


def test_nothing_is_decided_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the model's forward and the scores' reference kernel, which read lengths."""
    engine = Engine(tiny_model(8), rows=3, max_len=80)
    method = specextend()
    engine.use(method, GREEDY)
    for row, ids in enumerate(prompts(8, [40, 21])):
        engine.admit(row, row, ids, 20)
    monkeypatch.setattr(engine.compute, "weigh", lambda *args: args[-1].add_(1))

    def forward(tokens: torch.Tensor, positions: torch.Tensor, attention: object) -> torch.Tensor:
        tap = getattr(attention, "tap", None)
        if tap is not None:
            tap(1, torch.zeros(*tokens.shape, 4, 8), attention)
        return torch.zeros(*tokens.shape, engine.config.hidden_size, dtype=engine.dtype)

    monkeypatch.setattr(engine.compute, "hidden", forward)
    with no_host_decisions():
        iterate(engine)
