"""What Vegas selects, and from which rows."""

import pytest
import torch
from pydantic import ValidationError

from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.errors import UsageError
from specbench.methods.vegas import Vegas, VegasParameters
from tests.support.dense import keys_and_queries, positions_of
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, autoregressive, decode, prompts, tiny_model, vegas


def chosen(method: Vegas, engine: Engine, row: int) -> list[list[set[int]]]:
    """Selected positions of a row, by layer and set, from the slots."""
    return [
        [positions_of(engine, row, group) for group in layer]
        for layer in method.selected[:, row].tolist()
    ]


def expected(
    engine: Engine, tokens: list[int], rows: list[int], ranked: int, keep: int, score: str
) -> list[list[set[int]]]:
    """The best `keep` of the first `ranked` positions for the given rows, by definition."""
    sets = []
    for keys, queries in keys_and_queries(engine, tokens):
        logits = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(2, 1)) * engine.scale
        hidden = torch.arange(len(tokens)) > torch.arange(len(tokens))[:, None]
        if score == "weight":
            logits = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        total = logits[:, rows, :ranked].sum(1).unflatten(0, (-1, 2)).sum(1)
        sets.append([set(head.topk(keep).indices.tolist()) for head in total])
    return sets


@pytest.mark.parametrize("score", ["weight", "logit"])
def test_the_first_selection_comes_from_the_prompts_last_row(score: str) -> None:
    engine = Engine(tiny_model(1), rows=2, max_len=120, prefill_chunk=16)
    method = vegas(score=score, kept_ratio=0.1, min_tokens=2)
    prompt = prompts(1, [75])[0]
    engine.use(method, GREEDY)
    engine.admit(1, 0, prompt, 20)
    # ceil(0.1 * 75)
    assert chosen(method, engine, 1) == expected(engine, prompt, [74], 75, 8, score)


@pytest.mark.parametrize("score", ["weight", "logit"])
@pytest.mark.parametrize("queries", ["first+last", "last", "all"])
def test_verification_ranks_the_prefix_up_to_its_first_row(score: str, queries: str) -> None:
    engine = Engine(tiny_model(2), rows=1, max_len=120)
    settings = {"score": score, "queries": queries, "normaliser": "exact"}
    method = vegas(**settings, kept_ratio=0.1, min_tokens=2, gamma=3)
    prompt = prompts(2, [60])[0]
    engine.use(method, GREEDY)
    first = engine.admit(0, 0, prompt, 30)
    drafted: list[int] = []
    draft = method.draft

    def watched(batch: object) -> object:
        proposal = draft(engine.batch)
        assert proposal is not None
        drafted[:] = proposal.tokens[0].tolist()
        return proposal

    method.draft = watched  # type: ignore[assignment, method-assign]
    engine.step()
    chunk = [*prompt, first, *drafted]
    rows = {"first+last": [60, 63], "last": [63], "all": [60, 61, 62, 63]}[queries]
    # 61 ranked entries: the prompt and row 0's own token; ceil(0.1 * 61)
    assert chosen(method, engine, 0) == expected(engine, chunk, rows, 61, 7, score)


@pytest.mark.parametrize("queries", ["first+last", "last", "all"])
def test_weights_under_the_normaliser_of_the_verification_before(queries: str) -> None:
    engine = Engine(tiny_model(2), rows=2, max_len=120)
    method = vegas(queries=queries, normaliser="previous", gamma=3)
    exact = vegas(queries=queries, normaliser="exact", gamma=3)
    ids = prompts(2, [60])[0]
    found = []
    for used in (exact, method):
        engine.use(used, GREEDY)
        engine.admit(1, 0, ids, 30)
        scores, norm = used.scores.clone(), None if used.norm is None else used.norm.clone()
        engine.step()
        found.append((scores, norm, used.scores.clone()))
        engine.release_all()
    (prompt, _, own), (same, seed, divided) = found
    # the prompt's are exact, and its last row's sum stands for all that vote
    assert torch.equal(prompt[:, 1], same[:, 1])
    assert seed is not None
    assert (seed[:, 1] == seed[:, 1, :1]).all()
    assert (seed[:, 0] == 0).all()
    # nothing but the divisor differs: of one voter a head, by a factor
    assert method.norm is not None
    if queries == "last":
        factor = (method.norm[:, 1, 0] - seed[:, 1, 0]).exp().unflatten(1, (2, 2))
        assert factor.min() < 0.999 or factor.max() > 1.001
        ratio = divided[:, 1, :, :61] / own[:, 1, :, :61]
        low, high = factor.amin(2)[..., None], factor.amax(2)[..., None]
        assert ((ratio > low * 0.999) & (ratio < high * 1.001)).all()
    assert not torch.equal(own[:, 1, :, :61], divided[:, 1, :, :61])


@pytest.mark.parametrize("queries", ["first+last", "all"])
@pytest.mark.parametrize(("left", "drafted"), [(30, 3), (4, 2), (2, 0)])
def test_weights_under_the_normaliser_of_the_draft_steps(
    left: int, drafted: int, queries: str
) -> None:
    """Drafts that read everything see what the verification sees: its sums are known before it."""
    engine = Engine(tiny_model(2), rows=2, max_len=120)
    method = vegas(normaliser="draft", gamma=3, kept_ratio=1.0, queries=queries)
    engine.use(method, GREEDY)
    engine.admit(1, 0, prompts(2, [60])[0], left)
    known: list[torch.Tensor] = []
    draft = method.draft

    def watched(batch: object) -> object:
        proposal = draft(engine.batch)
        assert method.norm is not None
        known.append(method.norm[:, 1].clone())
        return proposal

    method.draft = watched  # type: ignore[assignment, method-assign]
    engine.step()
    assert method.norm is not None
    assert method.lse is not None
    assert known[0].isfinite().all()
    if drafted:
        own = drafted if queries == "all" else 1
        torch.testing.assert_close(known[0][:, :own], method.norm[:, 1, :own])
        # the nearest step to the last row
        assert torch.equal(known[0][:, own], method.lse[:, 1, drafted - 1])


def test_one_set_a_layer_is_the_best_of_all_heads() -> None:
    engine = Engine(tiny_model(3), rows=1, max_len=90)
    method = vegas(share="layer", kept_ratio=0.2, min_tokens=2)
    prompt = prompts(3, [50])[0]
    engine.use(method, GREEDY)
    engine.admit(0, 0, prompt, 10)
    assert [len(layer) for layer in chosen(method, engine, 0)] == [1, 1]
    logits = [
        torch.einsum("hd,khd->hk", q[-1], k.repeat_interleave(2, 1)) * engine.scale
        for k, q in keys_and_queries(engine, prompt)
    ]
    best = [{*layer.softmax(-1).sum(0).topk(10).indices.tolist()} for layer in logits]
    assert [layer[0] for layer in chosen(method, engine, 0)] == best


def test_sinks_and_window_are_always_among_the_kept() -> None:
    engine = Engine(tiny_model(4), rows=1, max_len=120)
    method = vegas(sinks=2, window=3, kept_ratio=0.05, min_tokens=8)
    prompt = prompts(4, [90])[0]
    engine.use(method, GREEDY)
    engine.admit(0, 0, prompt, 10)
    for layer in chosen(method, engine, 0):
        for head in layer:
            assert len(head) == 8
            assert head >= {0, 1, 87, 88, 89}


def test_a_random_selection_is_a_control_of_equal_size() -> None:
    model = tiny_model(5)
    engine = Engine(model, rows=1, max_len=250)
    method = vegas(score="random", kept_ratio=0.2, min_tokens=2)
    prompt = prompts(5, [200])[0]
    engine.use(method, GREEDY)
    engine.admit(0, 0, prompt, 30)
    first = chosen(method, engine, 0)
    assert all(len(head) == 40 for layer in first for head in layer)
    assert len({frozenset(head) for layer in first for head in layer}) == 4
    engine.step()
    assert chosen(method, engine, 0) != first
    engine.release_all()
    base = decode(engine, autoregressive(), [prompt], 30)
    assert decode(engine, method, [prompt], 30)[0].output_ids == base[0].output_ids


@pytest.mark.parametrize(
    ("ratio", "floor", "length", "kept"),
    [(0.07, 1, 100, 7), (0.07, 1, 101, 8), (0.1, 64, 100, 64), (0.1, 64, 50, 50), (1.0, 1, 9, 9)],
)
def test_how_many_are_kept(ratio: float, floor: int, length: int, kept: int) -> None:
    method = vegas(kept_ratio=ratio, min_tokens=floor)
    assert int(method._keep(torch.tensor(length))) == kept


def test_gamma_0_is_autoregressive_decoding() -> None:
    engine = Engine(tiny_model(6), rows=1, max_len=60)
    prompt = prompts(6, [20])
    outcome = decode(engine, vegas(gamma=0), prompt, 12)[0]
    assert outcome.committed == [1] * 11
    assert outcome.drafted == [0] * 11
    assert outcome.output_ids == decode(engine, autoregressive(), prompt, 12)[0].output_ids


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="exceed min_tokens"):
        vegas(sinks=4, window=4, min_tokens=7)
    with pytest.raises(UsageError, match=r"vegas: .*exceed min_tokens"):
        Vegas.from_config(build_config({"sinks": 60, "window": 60}))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share": "layer", "kept_ratio": 0.5},
        {"kept_ratio": 1.0},
        {"sinks": 1, "window": 1},
        {"score": "random"},
    ],
)
def test_the_planned_memory_covers_what_ranking_takes(settings: dict[str, object]) -> None:
    engine = Engine(tiny_model(7), rows=3, max_len=4000)
    method = vegas(**settings)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    method.ranked.fill_(3999)
    kept = sum(t.numel() * t.element_size() for t in (method.scores, method.selected))
    peak = peak_bytes(lambda: method.observe(engine.batch))
    assert kept + peak <= planned
    assert planned < 3 * (kept + peak)


def test_only_weights_have_a_normaliser() -> None:
    assert VegasParameters().normaliser == "draft"
    assert VegasParameters(score="logit").normaliser == "exact"
    with pytest.raises(ValidationError, match="normaliser draft is of the score weight; logit has"):
        VegasParameters(score="logit", normaliser="draft")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_16_bit_models_are_kept_in_two_bytes(dtype: torch.dtype) -> None:
    for score, narrow in (("weight", dtype != torch.float32), ("logit", False)):
        engine = Engine(tiny_model(2, dtype), rows=1, max_len=120)
        method = vegas(score=score, kept_ratio=0.1, min_tokens=2, gamma=3)
        engine.use(method, GREEDY)
        assert method.scores.dtype == (torch.bfloat16 if narrow else torch.float32)
        if method.norm is not None:
            assert method.norm.dtype == torch.float32
        engine.admit(0, 0, prompts(2, [60])[0], 30)
        engine.step()
        assert len(chosen(method, engine, 0)[0][0]) == 7
        engine.release_all()
