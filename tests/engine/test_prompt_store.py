"""Prompts whose KV outlives their requests: read, never written, and given up for room."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.engine import Engine
from specbench.engine.generate import Generated, Request, generate
from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.engine.prefill import score
from specbench.engine.row_pages import RowPages
from specbench.engine.sampling import Sampling
from specbench.errors import OutOfMemoryError
from specbench.methods.base import EngineMethod
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    prompts,
    self_tree,
    specextend,
    stream_draft,
    tiny_config,
    tiny_model,
    vegas,
)

METHODS: dict[str, Callable[[], EngineMethod]] = {
    "autoregressive": autoregressive,
    "vegas": vegas,
    "vegas, normalised by the last": lambda: vegas(normaliser="previous"),
    "vegas, normalised by its drafts": lambda: vegas(normaliser="draft"),
    "lookup": lookup,
    "stream": lambda: magicdec("stream"),
    "snapkv": lambda: magicdec("snapkv"),
    "snapkv of a long window": lambda: magicdec("snapkv", window=30, budget=40),
    "quest": lambda: magicdec("quest"),
    "specextend": specextend,
    "trees": self_tree,
    "a small model": lambda: stream_draft(tiny_model(2)),
    "longspec": longspec,
    "longspec, trees": longspec_tree,
}
NEW = 8


def run(
    engine: Engine, method: EngineMethod, ids: list[list[int]], sampling: Sampling, fresh: bool
) -> dict[int, Generated]:
    requests = [Request(i, f"p{i}", tokens, NEW) for i, tokens in enumerate(ids)]
    engine.use(method, sampling)
    return {g.request.index: g for g in generate(engine, requests, fresh=fresh)}


def reused(made: dict[int, Generated]) -> list[int]:
    return [made[index].times.reused_tokens for index in sorted(made)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", METHODS)
def test_what_a_kept_prompt_gives_is_what_its_prefill_gives(name: str, sampling: Sampling) -> None:
    ids = prompts(1, [70, 16, 17, 3])
    method = METHODS[name]()
    engine = Engine(
        tiny_model(1), rows=2, max_len=90, spare=method.nodes, prefill_chunk=24, keep_prompts=True
    )
    first = run(engine, method, ids, sampling, fresh=True)
    kept = engine.cache.keys.clone()
    second = run(engine, method, ids, sampling, fresh=False)
    tail = method.prompt_tail
    expected = [max(0, len(tokens) - tail) // PAGE_SIZE * PAGE_SIZE for tokens in ids]
    assert reused(first) == [0, 0, 0, 0]
    assert reused(second) == expected
    assert {i: g.output_ids for i, g in second.items()} == {
        i: g.output_ids for i, g in first.items()
    }
    assert {i: g.accepted for i, g in second.items()} == {i: g.accepted for i, g in first.items()}
    engine.cache.check_integrity()
    # the pages of the kept prompts, which nobody may write
    pages = [page for page in range(1, engine.cache.num_pages + 1) if page in engine.cache._owned]
    assert len(pages) == sum(expected) // PAGE_SIZE
    assert torch.equal(engine.cache.keys[:, pages], kept[:, pages])


def test_another_method_reads_the_same_prompt() -> None:
    ids = prompts(2, [60, 45])
    engine = Engine(tiny_model(1), rows=2, max_len=90, keep_prompts=True)
    base = run(engine, autoregressive(), ids, GREEDY, fresh=False)
    ours = run(engine, vegas(), ids, GREEDY, fresh=False)
    assert (reused(base), reused(ours)) == ([0, 0], [48, 32])
    assert {i: g.output_ids for i, g in ours.items()} == {i: g.output_ids for i, g in base.items()}


def test_a_method_that_reads_less_of_a_kept_prompt_needs_no_more_pages() -> None:
    ids = prompts(2, [80, 80])
    engine = Engine(tiny_model(1), rows=2, max_len=88, keep_prompts=True)
    base = run(engine, autoregressive(), ids, GREEDY, fresh=False)
    ours = run(engine, magicdec("snapkv", window=30, budget=40), ids, GREEDY, fresh=False)
    again = run(engine, autoregressive(), ids, GREEDY, fresh=False)
    assert [reused(made) for made in (base, ours, again)] == [[0, 0], [48, 48], [48, 48]]
    assert {i: g.output_ids for i, g in ours.items()} == {i: g.output_ids for i, g in base.items()}


def test_teacher_forcing_reads_it_too() -> None:
    (ids,) = prompts(3, [53])
    output = [1, 2, 3, 4]
    alone = Engine(tiny_model(1), rows=1, max_len=90)
    engine = Engine(tiny_model(1), rows=1, max_len=90, keep_prompts=True)
    run(engine, autoregressive(), [ids], GREEDY, fresh=False)
    expected = torch.cat([logits for logits, _ in score(alone, ids, output)])
    engine.cache.keys[:, engine.cache._free] = torch.nan  # what is not kept must not be read
    found = torch.cat([logits for logits, _ in score(engine, ids, output)])
    torch.testing.assert_close(found, expected)
    engine.cache.check_integrity()


def test_without_room_prompts_are_prefilled_again() -> None:
    ids = prompts(4, [60] * 7)
    engine = Engine(tiny_model(1), rows=2, max_len=72, keep_prompts=True)
    first = run(engine, vegas(), ids, GREEDY, fresh=False)
    second = run(engine, vegas(), ids, GREEDY, fresh=False)
    assert {i: g.output_ids for i, g in second.items()} == {
        i: g.output_ids for i, g in first.items()
    }
    assert len(engine.pages._prompts._kept) <= 2
    engine.cache.check_integrity()


@pytest.mark.parametrize(
    "method", [magicdec("quest"), stream_draft(tiny_model(2))], ids=["quest", "stream"]
)
def test_room_for_those_that_wait_keeps_all(method: EngineMethod) -> None:
    ids = prompts(4, [60, 41, 17, 60, 33, 60, 3])
    waiting = sum(sorted(map(len, ids))[2:])
    few = Engine(tiny_model(1), rows=2, max_len=72, keep_prompts=True)
    engine = Engine(tiny_model(1), rows=2, max_len=72, keep_prompts=True, kept_tokens=waiting)
    first = run(engine, method, ids, GREEDY, fresh=True)
    assert reused(run(engine, method, ids, GREEDY, fresh=False)) == [48, 32, 16, 48, 32, 48, 0]
    engine.cache.check_integrity()
    # more pages than the rows': nothing that is indexed by page is too small
    plain = run(few, method, ids, GREEDY, fresh=True)
    assert {i: g.output_ids for i, g in first.items()} == {
        i: g.output_ids for i, g in plain.items()
    }
    config, more = engine.config, engine.cache.num_pages - few.cache.num_pages
    assert more == pages_for(waiting)
    held = {e: sum(x.nbytes for x in tensors_of(method, e)) for e in (few, engine)}
    assert held[engine] - held[few] == more * method.page_bytes(config, engine.dtype)


def tensors_of(method: EngineMethod, engine: Engine) -> list[torch.Tensor]:
    """What the method holds that is as large as the cache has pages."""
    method.unbind()
    engine.use(method, GREEDY)
    drafter = getattr(method, "drafter", None)
    owners = [vars(method)] if drafter is None else [vars(drafter.cache)]
    return [x for owner in owners for x in owner.values() if isinstance(x, torch.Tensor)]


def test_fresh_prefills_a_kept_prompt_and_keeps_it_once() -> None:
    ids = prompts(5, [36, 60])
    engine = Engine(tiny_model(1), rows=2, max_len=72, keep_prompts=True)
    for _ in range(3):
        assert reused(run(engine, vegas(), ids, GREEDY, fresh=True)) == [0, 0]
    assert reused(run(engine, vegas(), ids, GREEDY, fresh=False)) == [32, 48]
    engine.cache.check_integrity()


def test_invalid_logits_are_not_kept() -> None:
    model = tiny_model(1)
    model.head[:] = torch.nan
    engine = Engine(model, rows=1, max_len=72, keep_prompts=True)
    engine.use(autoregressive(), GREEDY)
    assert engine.admit(0, 0, prompts(6, [40])[0], 8) == -1
    assert engine.cache.free_pages == engine.cache.num_pages


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_page_belongs_to_one_row_or_one_prompt(data: st.DataObject) -> None:
    rows, pages = 3, data.draw(st.integers(6, 14), label="pages")
    cache = KVCache(tiny_config(), pages, torch.float32, "cpu")
    book = RowPages(cache, keep_prompts=True)
    texts = prompts(0, [40, 33, 17, 9])
    held: dict[int, tuple[list[int], list[int]]] = {}
    for _ in range(data.draw(st.integers(1, 25), label="actions")):
        row = data.draw(st.integers(0, rows - 1), label="row")
        if row in held:
            book.release(row)
            del held[row]
        else:
            text = data.draw(st.sampled_from(texts), label="prompt")
            tokens = len(text) + data.draw(st.integers(1, 30), label="new tokens")
            known = data.draw(st.sampled_from([0, len(text) - 1]), label="known")
            try:
                given_pages = book.reserve(row, text, known, tokens)
            except OutOfMemoryError:
                cache.check_integrity()
                continue
            assert len(given_pages) == pages_for(tokens)
            assert book.reused(row) <= known
            held[row] = given_pages, text
            if data.draw(st.booleans(), label="prefilled"):
                book.keep_prompt(row, len(text) - 1)
        cache.check_integrity()
        for (mine, text), (theirs, _) in permutations(held.values(), 2):
            full = (len(text) - 1) // PAGE_SIZE
            # what is written while decoding is nobody else's; the same prompt may be read by both
            assert not set(mine[full:]).intersection(theirs)
            assert not set(mine).intersection(theirs) or mine[0] == theirs[0]
    for row in list(held):
        book.release(row)
    cache.check_integrity()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_free_row_never_lacks_pages(data: st.DataObject) -> None:
    rows, longest = 3, 64
    cache = KVCache(tiny_config(), rows * pages_for(longest), torch.float32, "cpu")
    book = RowPages(cache, keep_prompts=True)
    texts = prompts(0, [60, 40, 33, 9])
    for _ in range(data.draw(st.integers(1, 4), label="runs")):
        tail = data.draw(st.sampled_from([1, 2, 20, 33]), label="tail")
        fresh = data.draw(st.booleans(), label="fresh")
        held = set[int]()
        for _ in range(data.draw(st.integers(1, 12), label="actions")):
            row = data.draw(st.integers(0, rows - 1), label="row")
            if row in held:
                book.release(row)
                held.remove(row)
                continue
            text = data.draw(st.sampled_from(texts), label="prompt")
            known = len(text) - tail
            book.reserve(row, text, 0 if fresh else known, longest)
            book.keep_prompt(row, known)
            held.add(row)
            cache.check_integrity()
        for row in held:
            book.release(row)
