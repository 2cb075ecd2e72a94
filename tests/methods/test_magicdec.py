"""What MagicDec's variants read."""

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from specbench.bench.arms import build_arms
from specbench.config_build import build_config
from specbench.engine.batch import Batch
from specbench.engine.engine import Engine
from specbench.engine.forward import SparseAttention
from specbench.engine.sampling import Sampling
from specbench.errors import ContextTooLongError, UsageError
from specbench.methods.magicdec.method import MagicDec
from specbench.methods.magicdec.quest import Quest, QuestAttention
from specbench.methods.magicdec.snapkv import SnapKV
from specbench.methods.magicdec.stream import Stream
from tests.support.capture import no_host_decisions
from tests.support.dense import keys_and_queries, positions_of
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, autoregressive, decode, magicdec, prompts, tiny_model

VARIANTS = ["stream", "snapkv", "quest"]


def test_the_streams_window_rolls_while_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[list[set[int]], int]] = []
    attend = SparseAttention.__call__

    def watched(self: SparseAttention, layer: int, *qkv: torch.Tensor) -> torch.Tensor:
        lists = [[*s, *t] for s, t in zip(self.selected[layer, :, 0], self.tail, strict=True)]
        lengths = engine.batch.lengths.tolist()
        sets = [positions_of(engine, r, [int(s) for s in lists[r]]) for r in range(len(lengths))]
        read.append((sets, layer))
        return attend(self, layer, *qkv)

    monkeypatch.setattr(SparseAttention, "__call__", watched)
    engine = Engine(tiny_model(1), rows=2, max_len=90)
    engine.use(magicdec("stream", gamma=2, budget=9, sinks=3), GREEDY)
    for row, ids in enumerate(prompts(1, [50, 5])):
        engine.admit(row, row, ids, 30)
    for _ in range(4):
        read.clear()
        lengths = engine.batch.lengths.tolist()
        engine.step()
        for step in (0, 1):
            for sets, _ in read[2 * step : 2 * step + 2]:
                for n, positions in zip(lengths, sets, strict=True):
                    kept = {0, 1, 2, *range(max(n - 6, 0), n)} if n > 9 else set(range(n))
                    assert positions == kept | set(range(n, n + step + 1))
    assert engine.batch.lengths[1] >= 9


def snapkv_by_definition(
    engine: Engine, tokens: list[int], window: int, pool: int, keep: int
) -> list[list[set[int]]]:
    """The best `keep` positions before the window, by layer and KV head."""
    n = len(tokens)
    sets = []
    for keys, queries in keys_and_queries(engine, tokens):
        logits = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(2, 1)) * engine.scale
        hidden = torch.arange(n) > torch.arange(n)[:, None]
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)[:, n - window :, : n - window]
        summed = weights.sum(1)
        near = torch.arange(n - window)[:, None] - torch.arange(n - window)
        pooled = summed @ (near.abs() <= pool // 2).to(summed) / pool
        heads = pooled.view(2, 2, -1).sum(1)
        sets.append([set(head.topk(keep).indices.tolist()) for head in heads])
    return sets


@pytest.mark.parametrize("chunk", [3, 16, 61, 64, 70])
@pytest.mark.parametrize(
    ("window", "pool", "keep"), [(12, 5, 9), (12, 5, 55), (1, 1, 9), (32, 3, 36)]
)
def test_snapkvs_set_equals_a_dense_reference(
    chunk: int, window: int, pool: int, keep: int
) -> None:
    engine = Engine(tiny_model(2), rows=2, max_len=110, prefill_chunk=chunk)
    method = magicdec("snapkv", window=window, pool=pool, budget=window + keep)
    assert isinstance(method, SnapKV)
    # the first request leaves scores behind, and the second has the other row
    other, prompt = prompts(2, [76, 70])
    engine.use(method, GREEDY)
    engine.admit(0, 0, other, 30)
    engine.admit(1, 1, prompt, 30)

    def selected() -> list[list[set[int]]]:
        found = method.selected[:, 1].tolist()
        return [[positions_of(engine, 1, head) for head in layer] for layer in found]

    expected = snapkv_by_definition(engine, prompt, window, pool, keep)
    assert selected() == expected
    assert method.start.tolist() == [76 - window, 70 - window]
    for _ in range(3):
        engine.step()
    assert selected() == expected


def test_snapkv_selects_nothing_of_a_prompt_within_its_window() -> None:
    engine = Engine(tiny_model(3), rows=1, max_len=60, prefill_chunk=4)
    method = magicdec("snapkv", gamma=5, window=20, budget=30)
    assert isinstance(method, SnapKV)
    outcome = decode(engine, method, prompts(3, [20]), 31)[0]
    assert (method.selected == -1).all()
    # the window and all that follows it are read, so every draft is the target's
    assert outcome.accepted == [5] * 5


def test_snapkv_reads_every_new_token_up_to_the_last() -> None:
    engine = Engine(tiny_model(3), rows=2, max_len=90, max_new_tokens=31)
    method = magicdec("snapkv", gamma=5, window=4, budget=90)
    outcomes = decode(engine, method, prompts(3, [50, 9]), 31)
    assert [outcome.accepted for outcome in outcomes.values()] == [[5] * 5] * 2
    with pytest.raises(ContextTooLongError, match="32 new tokens exceed the 31"):
        decode(engine, method, prompts(3, [9]), 32)


def bounds_by_definition(engine: Engine, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Least and largest committed key of each page of a row, `[layers, Hkv, D]`."""
    length = int(engine.batch.lengths[row])
    pages = engine.batch.block_table[row, : -(-length // 16)]
    keys = engine.cache.keys[:, pages].flatten(1, 2)[:, :length]
    return [(page.amin(1), page.amax(1)) for page in keys.split(16, 1)]


@pytest.mark.parametrize("gamma", [1, 4, 20])
def test_quests_bounds_are_those_of_committed_keys(gamma: int) -> None:
    engine = Engine(tiny_model(4), rows=3, max_len=120)
    method = magicdec("quest", gamma=gamma)
    assert isinstance(method, Quest)
    sampling = Sampling(temperature=1.5, seed=2)
    engine.use(method, sampling)
    token_ids = prompts(4, [50, 3, 16])
    for row, ids in enumerate(token_ids):
        engine.admit(row, row, ids, 60)
    rejected = 0
    for step in range(12):
        before = method.page_min.clone(), method.page_max.clone()
        method.draft(engine.batch)
        assert torch.equal(before[0], method.page_min)
        assert torch.equal(before[1], method.page_max)
        result = engine.step()
        rejected += sum(result.drafted) - sum(result.accepted)
        if step == 5:
            # pages that another request had begin anew
            engine.release(1)
            engine.admit(1, 7, token_ids[2], 60)
        for row in range(3):
            for place, (low, high) in enumerate(bounds_by_definition(engine, row)):
                page = engine.batch.block_table[row, place]
                assert torch.equal(method.page_min[:, page], low)
                assert torch.equal(method.page_max[:, page], high)
    assert rejected > 0


def slots_of_pages(pages: list[int]) -> list[int]:
    return [16 * page + i for page in pages if page >= 0 for i in range(16)]


def test_quest_chooses_pages_for_each_query_and_reads_the_first_layers_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(tiny_model(5, num_layers=3), rows=2, max_len=150)
    method = magicdec("quest", gamma=3, budget=40, dense_layers=1)
    seen: list[tuple[int, list[list[set[int]]], torch.Tensor]] = []
    select = QuestAttention._select

    def watched(self: QuestAttention, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        select(self, layer, q, out)
        sets = [
            [
                positions_of(engine, row, [*slots_of_pages(head), *self.tail[row].tolist()])
                for head in heads
            ]
            for row, heads in enumerate(out.tolist())
        ]
        seen.append((layer, sets, q[:, 0].clone()))

    monkeypatch.setattr(QuestAttention, "_select", watched)
    engine.use(method, GREEDY)
    for row, ids in enumerate(prompts(5, [100, 37])):
        engine.admit(row, row, ids, 40)
    engine.step()
    seen.clear()
    lengths = engine.batch.lengths.tolist()
    bounds = [bounds_by_definition(engine, row) for row in range(2)]
    engine.step()
    assert [layer for layer, _, _ in seen] == [1, 2] * 3
    for call, (layer, sets, q) in enumerate(seen):
        for row, n in enumerate(lengths):
            complete = n // 16
            tail = set(range(complete * 16, n + call // 2 + 1))
            for head in range(2):
                query = q[row, 2 * head : 2 * head + 2]
                scores = [
                    float(torch.maximum(query * low[layer, head], query * high[layer, head]).sum())
                    for low, high in bounds[row][:complete]
                ]
                best = sorted(range(complete), key=lambda page: -scores[page])[:2]
                pages = {16 * page + i for page in best for i in range(16)}
                assert sets[row][head] == pages | tail
    # the choice follows the query
    assert len({frozenset(sets[0][0]) - set(range(96, 150)) for _, sets, _ in seen}) > 1


@pytest.mark.parametrize(
    ("settings", "length", "kept"),
    [
        ({}, 400, 400),
        ({}, 30_000, 512),
        ({"budget": 128}, 30_000, 128),
        ({"kept_ratio": 0.07}, 1000, 70),
        ({"kept_ratio": 0.07}, 1001, 71),
        ({"kept_ratio": 0.07}, 500, 64),
        ({"kept_ratio": 0.07}, 50, 50),
        ({"kept_ratio": 0.07, "min_tokens": 100}, 1000, 100),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_how_many_are_kept(variant: str, settings: dict, length: int, kept: int) -> None:
    config = build_config({"method": "magicdec", "variant": variant, **settings})
    method = MagicDec.arms(config)[f"magicdec-{variant}"]
    assert isinstance(method, MagicDec)
    assert method._most(length) == kept


@pytest.mark.parametrize("variant", VARIANTS)
def test_gamma_0_is_autoregressive_decoding(variant: str) -> None:
    engine = Engine(tiny_model(6), rows=1, max_len=60)
    prompt = prompts(6, [20])
    outcome = decode(engine, magicdec(variant, gamma=0), prompt, 12)[0]
    assert outcome.drafted == [0] * 11
    assert outcome.output_ids == decode(engine, autoregressive(), prompt, 12)[0].output_ids


@pytest.mark.parametrize(
    ("variant", "settings", "message"),
    [
        ("stream", {"budget": 16, "sinks": 16}, r"budget \(16\) .* 16 sinks would leave no window"),
        ("snapkv", {"budget": 32, "window": 32}, r"the window \(32\) would leave nothing"),
        ("snapkv", {"pool": 4}, r"pool \(4\) must be odd"),
        ("quest", {"budget": 15}, "a page of 16 entries is the least"),
        ("quest", {"kept_ratio": 0.1, "min_tokens": 8}, r"min_tokens \(8\) is less than 16"),
    ],
)
def test_settings_that_leave_nothing_are_refused(
    variant: str, settings: dict, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        magicdec(variant, **settings)


def test_variants_are_arms() -> None:
    def names(**settings: object) -> list[str]:
        config = build_config({"method": "magicdec", "baseline": False, **settings})
        return [arm.name for arm in build_arms(config)]

    assert names() == ["magicdec-stream"]
    assert names(variant="quest") == ["magicdec-quest"]
    assert names(variant="all") == ["magicdec-stream", "magicdec-snapkv", "magicdec-quest"]
    with pytest.raises(UsageError, match=r"unknown variant 'qest'. Did you mean 'quest'"):
        names(variant="qest")
    with pytest.raises(UsageError, match="--pool is no setting of magicdec-quest"):
        names(variant="quest", pool=3)
    with pytest.raises(UsageError, match=r"magicdec: .*leave one out"):
        names(budget=100, kept_ratio=0.1)
    config = build_config({"method": "magicdec", "variant": "all", "kept_ratio": 0.05, "pool": 3})
    reports = [arm.info.parameters for arm in build_arms(config)[1:]]
    assert [report["variant"] for report in reports] == VARIANTS
    assert all("budget" not in report and report["kept_ratio"] == 0.05 for report in reports)
    assert reports[1]["pool"] == 3
    assert reports[0]["sinks"] == 16


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("stream", {}),
        ("snapkv", {}),
        ("snapkv", {"kept_ratio": 0.5, "min_tokens": 16}),
        ("quest", {}),
        ("quest", {"kept_ratio": 0.5, "min_tokens": 16}),
        ("quest", {"gamma": 40}),
    ],
)
def test_the_planned_memory_covers_what_is_held(variant: str, settings: dict) -> None:
    engine = Engine(tiny_model(7, torch.float32, 4096), rows=3, max_len=4000)
    method = magicdec(variant, **settings)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    batch = engine.batch
    for row in range(3):
        batch.reserve(row, engine.cache.allocate(4000))
        batch.admit(row, row, 3900, 1, 90)
    kept = sum(t.nbytes for t in vars(method).values() if isinstance(t, torch.Tensor))
    calls = [lambda: method.admit(0, batch), lambda: method.observe(batch)]
    calls += [chooser(method, engine, batch)]
    peak = max(map(peak_bytes, calls))
    assert kept + peak <= planned
    assert planned < 4 * (kept + peak)


def chooser(method: MagicDec, engine: Engine, batch: Batch) -> Callable[[], object]:
    """What a draft step does to choose, without the forward."""
    if isinstance(method, Quest):
        query = torch.zeros(3, 1, 4, 8, dtype=engine.dtype)
        return lambda: method._attentions(batch)[0]._select(1, query, method.pages[0])
    if isinstance(method, Stream):
        return lambda: batch.slots(*method._chosen(batch))
    return lambda: batch.slots(method.start[:, None] + method.offset, torch.ones(3, 1).bool())


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_decided_by_the_host(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the model's forward, whose reference kernels read lengths."""
    engine = Engine(tiny_model(8), rows=3, max_len=80)
    method = magicdec(variant)
    engine.use(method, GREEDY)
    for row, ids in enumerate(prompts(8, [40, 21])):
        engine.admit(row, row, ids, 20)
    query = torch.zeros(3, 1, 4, 8, dtype=engine.dtype)

    def best(tokens: torch.Tensor, positions: torch.Tensor, attention: object) -> object:
        if isinstance(attention, QuestAttention):
            attention._select(1, query, method.pages[0])
        return torch.zeros_like(tokens), torch.zeros_like(tokens).bool()

    monkeypatch.setattr(engine.compute, "best", best)
    with no_host_decisions():
        method.draft(engine.batch)
        method.observe(engine.batch)
