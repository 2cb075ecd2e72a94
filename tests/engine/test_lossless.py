"""Greedy speculation commits what autoregressive decoding commits, token by token."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.engine import Engine
from specbench.engine.generate import Generated
from specbench.engine.model import Transformer
from specbench.engine.sampling import Sampling
from specbench.methods.base import EngineMethod
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    decode,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    prompts,
    self_tree,
    specextend,
    stream_draft,
    tiny_model,
    vegas,
    with_draft,
)

SHAPES = [
    {"num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "num_layers": 2},
    {"num_heads": 3, "num_kv_heads": 1, "head_dim": 6, "num_layers": 1, "hidden_size": 18},
    {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "num_layers": 3, "qkv_bias": True},
    {"num_heads": 4, "num_kv_heads": 1, "head_dim": 4, "num_layers": 2, "qk_norm": True},
]

VARIANTS = ["stream", "snapkv", "quest"]
SOME = {
    "vegas": vegas(gamma=7),
    "lookup": lookup(gamma=7, ngram_min=1),
    "longspec": longspec(gamma=7),
    **{variant: magicdec(variant, gamma=7) for variant in VARIANTS},
    "relative stream": magicdec("stream", gamma=7, positions="cache-relative"),
    "specextend": specextend(gamma=7),
    "specextend, full": specextend(gamma=7, collect="full", interval=1),
}


def with_eos(model: Transformer, eos: tuple[int, ...]) -> Transformer:
    """The same model, ending at other tokens."""
    model.config = replace(model.config, eos_ids=eos)
    return model


def any_vegas(data: st.DataObject) -> EngineMethod:
    """Vegas with settings of any kind."""
    score = data.draw(st.sampled_from(["weight", "logit"]), label="score")
    return vegas(
        gamma=data.draw(st.integers(0, 7), label="gamma"),
        kept_ratio=data.draw(st.sampled_from([0.01, 0.1, 0.5, 1.0]), label="ratio"),
        min_tokens=data.draw(st.integers(3, 9), label="min_tokens"),
        score=score,
        normaliser=data.draw(
            st.sampled_from(["exact", "draft", "previous"] if score == "weight" else ["exact"]),
            label="normaliser",
        ),
        queries=data.draw(st.sampled_from(["first+last", "last", "all"]), label="queries"),
        share=data.draw(st.sampled_from(["head", "layer"]), label="share"),
        sinks=data.draw(st.integers(0, 2), label="sinks"),
        window=data.draw(st.integers(0, 1), label="window"),
    )


def any_lookup(data: st.DataObject) -> EngineMethod:
    """Prompt lookup, also for single tokens, which a small vocabulary repeats at once."""
    low = data.draw(st.integers(1, 3), label="ngram_min")
    return lookup(
        gamma=data.draw(st.integers(0, 16), label="gamma"),
        ngram_min=low,
        ngram_max=data.draw(st.integers(low, 5), label="ngram_max"),
    )


def any_longspec(data: st.DataObject) -> EngineMethod:
    """LongSpec, its window longer than the prompts, or hardly longer than its drafts are deep."""
    extra = data.draw(st.sampled_from([1, 2, 5, 60]), label="window beyond the drafts")
    if data.draw(st.booleans(), label="tree"):
        # the smallest vocabulary has four tokens
        levels = st.lists(st.integers(1, 4), min_size=1, max_size=6)
        shape = tuple(data.draw(levels, label="shape"))
        return longspec_tree(window=len(shape) + extra, tree_shape=shape)
    gamma = data.draw(st.integers(0, 7), label="gamma")
    return longspec(window=gamma + extra, gamma=gamma)


def any_magicdec(data: st.DataObject, variant: str) -> EngineMethod:
    """A variant of MagicDec, its budget far below or far above the prompts' lengths."""
    windows = {"stream": ("sinks", 0), "snapkv": ("window", 1), "quest": ("dense_layers", 0)}
    name, least = windows[variant]
    own: dict[str, object] = {name: data.draw(st.integers(least, 3), label=name)}
    if variant == "stream":
        positions = st.sampled_from(["absolute", "cache-relative"])
        own["positions"] = data.draw(positions, label="positions")
    if variant == "snapkv":
        own["pool"] = data.draw(st.sampled_from([1, 3, 7]), label="pool")
    low = 16 if variant == "quest" else 4
    sizes: list[dict[str, object]] = [
        {"budget": low},
        {"budget": 2 * low},
        {"budget": 999},
        {"kept_ratio": 0.01, "min_tokens": low},
        {"kept_ratio": 0.5, "min_tokens": low},
    ]
    size = data.draw(st.sampled_from(sizes), label="size")
    return magicdec(variant, gamma=data.draw(st.integers(0, 7), label="gamma"), **own, **size)


def any_specextend(data: st.DataObject) -> EngineMethod:
    """SpecExtend on itself, its chunks few or all of the context's."""
    size = st.sampled_from([{"top_chunks": 1}, {"top_chunks": 99}, {"kept_ratio": 0.3}])
    if data.draw(st.booleans(), label="tree"):
        return self_tree(
            nodes=data.draw(st.integers(1, 6), label="nodes"),
            depth=data.draw(st.integers(1, 4), label="depth"),
            chunk=data.draw(st.integers(1, 20), label="chunk"),
            interval=data.draw(st.integers(1, 4), label="interval"),
            collect=data.draw(st.sampled_from(["cheap", "full"]), label="collect"),
            **data.draw(size, label="size"),
        )
    return specextend(
        gamma=data.draw(st.integers(0, 7), label="gamma"),
        chunk=data.draw(st.integers(1, 20), label="chunk"),
        interval=data.draw(st.integers(1, 4), label="interval"),
        collect=data.draw(st.sampled_from(["cheap", "full"]), label="collect"),
        **data.draw(size, label="size"),
    )


def check_random_model(
    data: st.DataObject,
    any_method: Callable[..., EngineMethod],
    of_vocabulary: bool = False,
    baseline: bool = False,
) -> None:
    """A random model, prompts of random lengths, EOS anywhere: the outputs are the baseline's.

    With `baseline` its own outputs end at EOS too, in the engine that the method gets next.
    """
    seed = data.draw(st.integers(0, 2**16), label="seed")
    vocab = data.draw(st.sampled_from([4, 11]), label="vocab")
    shape = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": vocab}
    shape |= data.draw(st.sampled_from(SHAPES), label="shape")
    model = tiny_model(seed, torch.float64, 64, **shape)
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4), label="lengths")
    new = data.draw(st.integers(1, 14), label="new")
    rows = data.draw(st.integers(1, 4), label="rows")
    method = any_method(data, vocab) if of_vocabulary else any_method(data)
    token_ids = prompts(seed, lengths, vocab)
    engine = Engine(model, rows=len(lengths), max_len=54, prefill_chunk=64)
    free = decode(engine, autoregressive(), token_ids, new)
    # tokens that greedy decoding really produces end some requests, anywhere in a block
    produced = [token for g in free.values() for token in g.output_ids]
    eos = tuple(data.draw(st.lists(st.sampled_from(produced), max_size=2), label="eos"))
    spare = method.nodes
    engine = Engine(with_eos(model, eos), rows=rows, max_len=54, prefill_chunk=16, spare=spare)
    base = decode(engine, autoregressive(), token_ids, new) if baseline else {}
    ours = decode(engine, method, token_ids, new)
    for index, whole in free.items():
        ends = [i + 1 for i, token in enumerate(whole.output_ids) if token in eos]
        expected = whole.output_ids[: ends[0]] if ends else whole.output_ids
        assert not baseline or base[index].output_ids == expected
        assert ours[index].output_ids == expected
        assert ours[index].finish_reason == ("eos" if ends else "length")
        for drafted, accepted, committed in zip(
            ours[index].drafted, ours[index].accepted, ours[index].committed, strict=True
        ):
            assert 0 <= accepted <= drafted <= method.gamma
            assert 1 <= committed <= accepted + 1
        assert sum(ours[index].committed) == len(expected) - 1
    engine.cache.check_integrity()
    assert engine.cache.free_pages == engine.cache.num_pages


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_vegas_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_vegas, baseline=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_lookup_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_lookup)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_longspec_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_longspec)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_magicdec_equals_autoregressive_on_random_models(data: st.DataObject, variant: str) -> None:
    check_random_model(data, lambda data: any_magicdec(data, variant))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_specextend_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_specextend)


def any_drafter(data: st.DataObject, vocab: int) -> EngineMethod:
    """SpecExtend with a small random model, its context long or short."""
    shape = data.draw(st.sampled_from(SHAPES), label="drafter's shape")
    context = data.draw(st.sampled_from([53, 54, 160]), label="context")
    seed = data.draw(st.integers(0, 99), label="drafter's seed")
    drafter = tiny_model(
        seed,
        torch.float64,
        160,
        **shape,
        vocab_size=vocab + data.draw(st.integers(-1, 1), label="padding"),
        max_position_embeddings=context,
    )
    if data.draw(st.booleans(), label="stream"):
        return stream_draft(
            drafter,
            gamma=data.draw(st.integers(0, 7), label="gamma"),
            budget=data.draw(
                st.sampled_from([4, 12, 30, *([99] if context > 53 else [])]), label="budget"
            ),
            sinks=data.draw(st.integers(0, 3), label="sinks"),
            draft_window=data.draw(st.integers(1, 20), label="window"),
        )
    return with_draft(
        drafter,
        nodes=data.draw(st.integers(1, 5), label="nodes"),
        depth=data.draw(st.integers(1, 3), label="depth"),
        threshold=data.draw(st.sampled_from([0.0, 0.5]), label="threshold"),
        chunk=data.draw(st.integers(1, 8), label="chunk"),
        top_chunks=data.draw(st.integers(1, 2), label="top_chunks"),
        interval=data.draw(st.integers(1, 3), label="interval"),
        collect=data.draw(st.sampled_from(["cheap", "full"]), label="collect"),
        draft_window=data.draw(st.integers(1, 20), label="window"),
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_drafting_model_leaves_outputs_alone(data: st.DataObject) -> None:
    check_random_model(data, any_drafter, of_vocabulary=True)


def trees(drafter: Transformer) -> EngineMethod:
    """SpecExtend with a small model."""
    return with_draft(drafter, nodes=12, depth=7, top_chunks=20, interval=3)


def own_trees(drafter: Transformer) -> EngineMethod:
    """SpecExtend on itself, in trees."""
    return self_tree(nodes=12, depth=7, top_chunks=5, interval=3)


def chains(drafter: Transformer) -> EngineMethod:
    """MagicDec with a small model."""
    return stream_draft(drafter, gamma=7, budget=30)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 0.9, seed=2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [trees, own_trees, chains])
def test_a_ragged_batch_with_a_drafting_model(
    kind: Callable[[Transformer], EngineMethod], dtype: torch.dtype, sampling: Sampling
) -> None:
    """Each row as it is alone, and equal to autoregressive decoding: trees even where sampled."""
    model, drafter = tiny_model(7, dtype, 300), tiny_model(7, dtype, 300)
    # near enough to the target that much is accepted, not so near that all is
    drafter.head.add_(torch.randn(drafter.head.shape, generator=torch.Generator()) * 0.05)
    token_ids = prompts(7, [3, 50, 200])

    def run(rows: int, indices: list[int], method: EngineMethod) -> dict[int, Generated]:
        engine = Engine(model, rows=rows, max_len=240, spare=12)
        return decode(engine, method, [token_ids[i] for i in indices], 30, sampling, indices)

    together = run(3, [0, 1, 2], kind(drafter))
    base = run(3, [0, 1, 2], autoregressive())
    for index in range(3):
        if kind is not chains or sampling.greedy:
            assert together[index].output_ids == base[index].output_ids
        alone = run(1, [index], kind(drafter))
        for name in ("output_ids", "drafted", "accepted"):
            assert getattr(alone[index], name) == getattr(together[index], name)
    assert max(max(g.accepted) for g in together.values()) > 3


EVERYTHING = {
    "vegas": vegas(gamma=5, kept_ratio=1.0),
    **{variant: magicdec(variant, gamma=5, budget=120) for variant in VARIANTS},
    "relative stream": magicdec("stream", gamma=5, budget=120, positions="cache-relative"),
    "specextend": specextend(gamma=5, top_chunks=99),
    "specextend, ratio": specextend(gamma=5, kept_ratio=1.0),
    **{f"{variant}, ratio": magicdec(variant, gamma=5, kept_ratio=1.0) for variant in VARIANTS},
}


@pytest.mark.parametrize("method", EVERYTHING.values(), ids=EVERYTHING.keys())
def test_everything_kept_means_everything_accepted(method: EngineMethod) -> None:
    model = tiny_model(1, max_len=128)
    engine = Engine(model, rows=2, max_len=120)
    ours = decode(engine, method, prompts(1, [40, 23]), 31)
    for g in ours.values():
        # 30 tokens after the first, five of six steps full: 6 * 5
        assert g.committed == [6, 6, 6, 6, 6]
        assert g.accepted == [5, 5, 5, 5, 5]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("method", SOME.values(), ids=SOME.keys())
def test_float32_is_exact_too(method: EngineMethod, rows: int) -> None:
    model = tiny_model(5, torch.float32)
    engine = Engine(model, rows=rows, max_len=220)
    token_ids = prompts(5, [3, 50, 150, 17])
    base = decode(engine, autoregressive(), token_ids, 40)
    ours = decode(engine, method, token_ids, 40)
    assert {i: g.output_ids for i, g in ours.items()} == {i: g.output_ids for i, g in base.items()}


@pytest.mark.parametrize("method", SOME.values(), ids=SOME.keys())
def test_a_row_of_a_ragged_batch_equals_its_solo_run(method: EngineMethod) -> None:
    """transformers PR#32189, MagicDec#3."""
    model = tiny_model(7)
    token_ids = prompts(7, [3, 50, 200])
    together = decode(Engine(model, rows=3, max_len=240), method, token_ids, 30)
    for index, ids in enumerate(token_ids):
        engine = Engine(model, rows=1, max_len=240)
        alone = decode(engine, method, [ids], 30, indices=[index])
        assert alone[index].output_ids == together[index].output_ids
        assert alone[index].accepted == together[index].accepted
        assert alone[index].drafted == together[index].drafted
