"""Above temperature 0 what is committed follows the target, and the tests notice a breach."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.engine import acceptance, forward
from specbench.engine.acceptance import accept_chain
from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.engine.prefill import score
from specbench.engine.random import Purpose, uniform
from specbench.engine.sampling import Sampling, draw, probabilities
from specbench.methods.base import Draft, EngineMethod
from tests.support.tiny import (
    decode,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    prompts,
    specextend,
    stream_draft,
    tiny_model,
    vegas,
)

SAMPLING = Sampling(temperature=0.5, top_p=0.95, top_k=5, seed=3)
DRAWS = 60_000
VOCAB = 6


def bound(outcomes: int, draws: int) -> float:
    """Total variation that sampling noise alone stays under.

    Its expectation over m outcomes and n draws is at most sqrt(m / (2 pi n)), a bound that only
    equally likely outcomes come near.
    """
    return (outcomes / (2 * torch.pi * draws)) ** 0.5 + 0.003


def total_variation(samples: Tensor, truth: Tensor) -> float:
    """Distance of the empirical distribution of `samples` `[n]` to `truth` `[m]`."""
    counts = torch.bincount(samples, minlength=len(truth)).double()
    return float((counts / counts.sum() - truth.double()).abs().sum() / 2)


def check_rule(gamma: int, draws: int = DRAWS) -> None:
    """The first two committed tokens of one iteration follow p(a) p(b | a), q being another.

    The target here is a table: its logits after drafts d1..di depend on di alone.
    """
    generator = torch.Generator().manual_seed(gamma)
    target = torch.randn(VOCAB + 1, VOCAB, generator=generator, dtype=torch.float64) * 1.5
    drafter = torch.randn(VOCAB + 1, VOCAB, generator=generator, dtype=torch.float64) * 1.5
    request = torch.arange(draws)
    start = torch.full_like(request, 9)
    context = torch.full_like(request, VOCAB)
    tokens, probs, logits = [], [], [target[context]]
    for step in range(gamma):
        q = probabilities(drafter[context], SAMPLING)
        u = uniform(SAMPLING.seed, request, start, step, Purpose.DRAFT)
        context = draw(q, u)
        tokens.append(context)
        probs.append(q)
        logits.append(target[context])
    draft = Draft(torch.stack(tokens, 1), torch.stack(probs, 1))
    allowed = torch.full_like(request, gamma)
    accepted, following = accept_chain(
        torch.stack(logits, 1), draft, allowed, SAMPLING, request, start
    )
    committed = torch.cat([draft.tokens, following[:, None]], 1)
    committed = torch.where(
        torch.arange(gamma + 1) < accepted[:, None], committed, following[:, None]
    )
    p = probabilities(target, SAMPLING)
    assert total_variation(committed[:, 0], p[VOCAB]) < bound(VOCAB, draws)
    two = accepted >= 1
    joint = (committed[:, 0] * VOCAB + committed[:, 1])[two]
    # P(first draft stands at a) = min(p, q)(a); what follows it comes from p(. | a)
    q = probabilities(drafter[VOCAB], SAMPLING)
    first = torch.minimum(p[VOCAB], q)
    truth = (first[:, None] * p[:VOCAB]).flatten()
    assert total_variation(joint, truth / truth.sum()) < bound(VOCAB**2, int(two.sum()))


@pytest.mark.parametrize("gamma", range(1, 7))
def test_the_rule_commits_the_targets_distribution(gamma: int) -> None:
    check_rule(gamma)


def test_one_hot_drafts_commit_the_targets_distribution() -> None:
    target = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    request = torch.arange(DRAWS)
    draft = Draft(torch.full((DRAWS, 1), 2))
    logits = target.expand(DRAWS, 2, VOCAB)
    one = torch.ones_like(request)
    accepted, following = accept_chain(logits, draft, one, SAMPLING, request, one)
    first = torch.where(accepted > 0, 2, following)
    assert total_variation(first, probabilities(target, SAMPLING)) < bound(VOCAB, DRAWS)


def small_model() -> Transformer:
    """Two layers over six tokens, peaked enough that drafts and target differ."""
    return tiny_model(11, torch.float64, 64, vocab_size=VOCAB, hidden_size=16, intermediate_size=16)


def truth_of(model: Transformer, prompt: list[int], count: int) -> Tensor:
    """Exact joint distribution `[VOCAB ** count]` of the first `count` new tokens."""
    tool = Engine(model, rows=1, max_len=64)
    joint = torch.ones(1, dtype=torch.float64)
    outcomes: list[list[int]] = [[]]
    for _ in range(count):
        rows = []
        for outcome in outcomes:
            # the token after `outcome` is what score() judges last
            *_, (logits, _) = score(tool, prompt, [*outcome, 0])
            rows.append(probabilities(logits[-1], SAMPLING))
        joint = (joint[:, None] * torch.stack(rows)).flatten()
        outcomes = [[*outcome, token] for outcome in outcomes for token in range(VOCAB)]
    return joint


def sparse_vegas(gamma: int) -> EngineMethod:
    """Vegas, its drafts unlike the target."""
    return vegas(gamma=gamma, min_tokens=2, kept_ratio=0.05)


def check_engine(
    gamma: int,
    make: Callable[[int], EngineMethod] = sparse_vegas,
    rounds: int = 20,
    length: int = 21,
) -> None:
    """The two tokens that a method speculates after a prefill, against their exact distribution.

    The prefill is done once; every round decodes from there with other random numbers.
    """
    rows, model = 250, small_model()
    prompt = prompts(2, [length], VOCAB)[0]
    method = make(gamma)
    tool = Engine(model, rows=rows, max_len=length + 3 + gamma, spare=method.nodes)
    tool.use(method, SAMPLING)
    first = {tool.admit(row, 0, prompt, 3 + gamma) for row in range(rows)}
    batch = tool.batch
    held = [*vars(batch).values(), *vars(method).values()]
    state = [value for value in held if isinstance(value, Tensor)]
    saved = [tensor.clone() for tensor in state]
    samples = []
    for number in range(rounds):
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        batch.request.copy_(torch.arange(rows) + number * rows)
        committed: list[list[int]] = [[] for _ in range(rows)]
        while any(len(tokens) < 2 for tokens in committed):
            for tokens, new in zip(committed, tool.step().tokens, strict=True):
                tokens += new
            # a request with two tokens is done
            batch.active &= torch.tensor([len(tokens) < 2 for tokens in committed])
        samples += [a * VOCAB + b for a, b, *_ in committed]
    truth = truth_of(model, prompt + list(first), 2)
    assert total_variation(torch.tensor(samples), truth) < bound(VOCAB**2, len(samples))


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_vegas_commits_the_targets_distribution(gamma: int) -> None:
    check_engine(gamma)


@pytest.mark.parametrize("gamma", [1, 4])
def test_lookup_commits_the_targets_distribution(gamma: int) -> None:
    check_engine(gamma, lambda gamma: lookup(gamma=gamma, ngram_min=1))


@pytest.mark.parametrize("gamma", [1, 4])
def test_longspec_commits_the_targets_distribution(gamma: int) -> None:
    check_engine(gamma, lambda gamma: longspec(gamma=gamma))


def test_longspecs_trees_commit_the_targets_distribution() -> None:
    check_engine(3, lambda gamma: longspec_tree(tree_shape=(3, 4, 4)))


@pytest.mark.parametrize("variant", ["stream", "snapkv", "quest"])
def test_magicdec_commits_the_targets_distribution(variant: str) -> None:
    check_engine(3, lambda gamma: magicdec(variant, gamma=gamma), rounds=16, length=40)


def test_a_drafting_model_leaves_the_targets_distribution() -> None:
    drafter = tiny_model(12, torch.float64, 64, vocab_size=VOCAB, hidden_size=16)
    check_engine(3, lambda gamma: stream_draft(drafter, gamma=gamma), rounds=16, length=40)


def test_specextend_commits_the_targets_distribution() -> None:
    check_engine(3, lambda gamma: specextend(gamma=gamma), rounds=16, length=40)


def check_committed_kv(make: Callable[[int], EngineMethod] = sparse_vegas) -> None:
    """After speculation, the cache holds what a fresh prefill of the same tokens would write."""
    model = small_model()
    prompt = prompts(4, [30], VOCAB)[0]
    first = Engine(model, rows=1, max_len=64)
    first.use(make(4), SAMPLING)
    output = [first.admit(0, 0, prompt, 24)]
    for _ in range(4):
        output += first.step().tokens[0]
    committed = prompt + output[:-1]
    length = int(first.batch.lengths[0])
    assert length == len(committed)
    fresh = Engine(model, rows=1, max_len=64)
    fresh.use(vegas(gamma=4), SAMPLING)
    fresh.admit(0, 0, committed, 1)
    for ours, true in (
        (first.cache.keys, fresh.cache.keys),
        (first.cache.values, fresh.cache.values),
    ):
        read = [
            cache[:, tool.batch.block_table[0]].flatten(1, 2)[:, :length]
            for cache, tool in ((ours, first), (true, fresh))
        ]
        torch.testing.assert_close(read[0], read[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "method", ["vegas", "lookup", "longspec", "specextend", "stream", "snapkv", "quest"]
)
def test_committed_kv_equals_a_fresh_prefill(method: str) -> None:
    others: dict[str, Callable[[int], EngineMethod]] = {
        "vegas": sparse_vegas,
        "lookup": lambda gamma: lookup(gamma=gamma, ngram_min=1),
        "specextend": lambda gamma: specextend(gamma=gamma),
        "longspec": lambda gamma: longspec(gamma=gamma),
    }
    check_committed_kv(others.get(method, lambda gamma: magicdec(method, gamma=gamma)))


def resample_from_p(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: after a rejection, draw from p instead of the residual."""
    monkeypatch.setattr(acceptance, "residual", lambda p, q: p)


def untempered_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: drafts are drawn as they should, but q is stated without temperature and cuts."""
    pick = Engine.pick

    def stated(self: Engine, logits: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        return pick(self, logits, offset)[0], torch.softmax(logits, -1)

    monkeypatch.setattr(Engine, "pick", stated)


def first_draft_always_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the first draft is never judged."""
    judge = acceptance._stands

    def stands(p: Tensor, q: Tensor, tokens: Tensor, u: Tensor) -> Tensor:
        verdict = judge(p, q, tokens, u)
        verdict[:, 0] = True
        return verdict

    monkeypatch.setattr(acceptance, "_stands", stands)


def draft_kv_left_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: verification keeps the KV that drafting wrote at the drafts' positions."""
    write = forward.write_kv

    def keep(cache: Tensor, values: Tensor, slots: Tensor) -> None:
        if 1 < slots.shape[1] <= 5:
            slots = torch.cat([slots[:, :1], torch.full_like(slots[:, 1:], -1)], 1)
        write(cache, values, slots)

    monkeypatch.setattr(forward, "write_kv", keep)


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (resample_from_p, lambda: check_rule(3)),
        (untempered_q, lambda: check_engine(3)),
        (resample_from_p, lambda: check_engine(3)),
        (first_draft_always_accepted, lambda: check_rule(3)),
        (draft_kv_left_in_the_cache, check_committed_kv),
    ],
    ids=[
        "resample from p",
        "untempered q",
        "resample from p, engine",
        "first draft always accepted",
        "draft KV left",
    ],
)
def test_each_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """lattice#243; without its mutant each check is a test above."""
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_the_output_depends_on_the_request_and_its_seed_alone() -> None:
    model = tiny_model(3)
    token_ids = prompts(3, [9, 31, 18, 44])
    together = decode(Engine(model, rows=3, max_len=80), vegas(), token_ids, 20, SAMPLING)
    for index in (0, 2):
        engine_alone = Engine(model, rows=1, max_len=80)
        alone = decode(engine_alone, vegas(), [token_ids[index]], 20, SAMPLING, indices=[index])
        assert alone[index].output_ids == together[index].output_ids
    other = Sampling(SAMPLING.temperature, SAMPLING.top_p, SAMPLING.top_k, seed=4)
    changed = decode(Engine(model, rows=3, max_len=80), vegas(), token_ids, 20, other)
    assert any(changed[i].output_ids != together[i].output_ids for i in together)
    twins = decode(Engine(model, rows=2, max_len=80), vegas(), [token_ids[1]] * 2, 20, SAMPLING)
    assert twins[0].output_ids != twins[1].output_ids
