"""Reports on drafts at the length limit, gamma 0 and outputs of one token."""

import pytest

from tests.support.every_method import EVERY, Factory, engine_for, steps_of, tokens_of
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec,
    lookup,
    magicdec,
    prompts,
    specextend,
    stream_draft,
    tiny_model,
    vegas,
)

MODEL = tiny_model(4)
PROMPTS = prompts(4, [33, 16])
SENTINEL = 7.0


def greedy(new: int) -> dict[int, list[int]]:
    method = autoregressive()
    return tokens_of(decode(engine_for(method, MODEL), method, PROMPTS, new))


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_drafts_shrink_at_the_length_limit(make: Factory) -> None:
    """vllm PR#24662, sglang#3574: drafts beyond the reservation wrote where they should not.

    Outputs of every length up to beyond gamma: no token too many, no draft that could not be
    committed, and no page touched that is not the request's.
    """
    plain = greedy(7)
    for new in (1, 2, 3, 5, 7):
        method = make()
        engine = engine_for(method, MODEL, rows=1)
        engine.cache.keys.fill_(SENTINEL)
        engine.cache.values.fill_(SENTINEL)
        (found,) = decode(engine, method, PROMPTS[1:], new).values()
        assert found.output_ids == plain[1][:new]
        assert found.drafted is not None
        left = new - 1
        for drafted, committed in zip(found.drafted, found.committed, strict=True):
            assert 0 <= drafted <= left - 1
            left -= committed
        assert left == 0
        # page 0 takes masked writes; the prompt is exactly one page long
        used = 1 + -(-(16 + new + method.nodes) // 16)
        for part in (engine.cache.keys, engine.cache.values):
            assert (part[:, used:] == SENTINEL).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: lookup(gamma=0),
        lambda: vegas(gamma=0),
        *(lambda v=v: magicdec(v, gamma=0) for v in ("stream", "snapkv", "quest")),
        lambda: stream_draft(tiny_model(3, max_len=300), gamma=0),
        lambda: specextend(gamma=0),
        lambda: longspec(gamma=0),
    ],
    ids=["lookup", "vegas", "stream", "snapkv", "quest", "draft model", "specextend", "longspec"],
)
def test_gamma_0_is_autoregressive_decoding(make: Factory) -> None:
    """vllm PR#24322 (review): no drafts, and nothing that divides by their number."""
    method, base = make(), autoregressive()
    expected = decode(engine_for(base, MODEL), base, PROMPTS, 9)
    found = decode(engine_for(method, MODEL), method, PROMPTS, 9)
    assert steps_of(found) == steps_of(expected)
    assert all(g.drafted == [0] * 8 and g.committed == [1] * 8 for g in found.values())


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_an_output_of_one_token_has_no_step(make: Factory) -> None:
    """vllm PR#24322 (review): prefill yields the only token, so that nothing is verified."""
    method = make()
    engine = engine_for(method, MODEL)
    found = decode(engine, method, [*PROMPTS, [5]], 1)
    assert {i: tokens[:1] for i, tokens in greedy(3).items()} == {
        i: found[i].output_ids for i in (0, 1)
    }
    assert all((g.drafted, g.accepted, g.committed) == ([], [], []) for g in found.values())
    assert engine.cache.free_pages == engine.cache.num_pages
