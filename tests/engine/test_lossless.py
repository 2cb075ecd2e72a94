"""Greedy speculation commits what autoregressive decoding commits, token by token."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.methods.base import EngineMethod
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec,
    lookup,
    magicdec,
    prompts,
    tiny_model,
    vegas,
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
            st.sampled_from(["exact", "previous"] if score == "weight" else ["exact"]),
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
    """LongSpec, its window longer than the prompts, or hardly longer than its chain."""
    gamma = data.draw(st.integers(0, 7), label="gamma")
    extra = data.draw(st.sampled_from([1, 2, 5, 60]), label="window beyond gamma")
    return longspec(window=gamma + extra, gamma=gamma)


def any_magicdec(data: st.DataObject, variant: str) -> EngineMethod:
    """A variant of MagicDec, its budget far below or far above the prompts' lengths."""
    windows = {"stream": ("sinks", 0), "snapkv": ("window", 1), "quest": ("dense_layers", 0)}
    name, least = windows[variant]
    own = {name: data.draw(st.integers(least, 3), label=name)}
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


def check_random_model(data: st.DataObject, any_method: Callable[..., EngineMethod]) -> None:
    """A random model, prompts of random lengths, EOS anywhere: the outputs are the baseline's."""
    seed = data.draw(st.integers(0, 2**16), label="seed")
    vocab = data.draw(st.sampled_from([4, 11]), label="vocab")
    shape = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": vocab}
    shape |= data.draw(st.sampled_from(SHAPES), label="shape")
    model = tiny_model(seed, torch.float64, 64, **shape)
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4), label="lengths")
    new = data.draw(st.integers(1, 14), label="new")
    rows = data.draw(st.integers(1, 4), label="rows")
    method = any_method(data)
    token_ids = prompts(seed, lengths, vocab)
    engine = Engine(model, rows=rows, max_len=54, prefill_chunk=16)
    free = decode(engine, autoregressive(), token_ids, new)
    # tokens that greedy decoding really produces end some requests, anywhere in a block
    produced = [token for g in free.values() for token in g.output_ids]
    eos = tuple(data.draw(st.lists(st.sampled_from(produced), max_size=2), label="eos"))
    engine = Engine(with_eos(model, eos), rows=rows, max_len=54, prefill_chunk=16)
    base = decode(engine, autoregressive(), token_ids, new)
    ours = decode(engine, method, token_ids, new)
    for index, whole in free.items():
        ends = [i + 1 for i, token in enumerate(whole.output_ids) if token in eos]
        expected = whole.output_ids[: ends[0]] if ends else whole.output_ids
        assert base[index].output_ids == expected
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


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_vegas_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_vegas)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_lookup_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_lookup)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_longspec_equals_autoregressive_on_random_models(data: st.DataObject) -> None:
    check_random_model(data, any_longspec)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_magicdec_equals_autoregressive_on_random_models(data: st.DataObject, variant: str) -> None:
    check_random_model(data, lambda data: any_magicdec(data, variant))


EVERYTHING = {
    "vegas": vegas(gamma=5, kept_ratio=1.0),
    **{variant: magicdec(variant, gamma=5, budget=120) for variant in VARIANTS},
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
    model = tiny_model(7)
    token_ids = prompts(7, [3, 50, 200])
    together = decode(Engine(model, rows=3, max_len=240), method, token_ids, 30)
    for index, ids in enumerate(token_ids):
        engine = Engine(model, rows=1, max_len=240)
        alone = decode(engine, method, [ids], 30, indices=[index])
        assert alone[index].output_ids == together[index].output_ids
        assert alone[index].accepted == together[index].accepted
        assert alone[index].drafted == together[index].drafted
