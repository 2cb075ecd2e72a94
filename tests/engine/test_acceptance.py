"""The acceptance rule: exact whatever the draft, and safe whatever it holds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.acceptance import accept_chain, residual
from specbench.engine.random import Purpose, uniform
from specbench.engine.sampling import Sampling, draw, probabilities
from specbench.methods.base import Draft

GREEDY = Sampling()
SEED = 3
DRAWS = 40_000
VOCAB = 5
# either is above the other for several tokens, and every outcome is common
TARGET = torch.tensor(
    [[0.30, 0.10, 0.25, 0.05, 0.30], [0.05, 0.35, 0.05, 0.25, 0.30], [0.2, 0.1, 0.3, 0.1, 0.3]],
    dtype=torch.float64,
)
DRAFT = torch.tensor(
    [[0.10, 0.30, 0.20, 0.30, 0.10], [0.30, 0.15, 0.25, 0.10, 0.20]], dtype=torch.float64
)


def prefer(tokens: list[list[int]], vocab: int = VOCAB) -> Tensor:
    """Logits `[R, gamma + 1, V]` whose best tokens are the given ones."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).double()


def keys(rows: int) -> tuple[Tensor, Tensor]:
    request = torch.arange(rows)
    return request, torch.full_like(request, 10)


def accept(
    logits: Tensor,
    draft: Draft | None,
    sampling: Sampling,
    allowed: Tensor | int | None = None,
) -> tuple[Tensor, Tensor]:
    """`accept_chain` with every draft allowed unless said otherwise."""
    rows = len(logits)
    if allowed is None:
        allowed = logits.shape[1] - 1
    if isinstance(allowed, int):
        allowed = torch.full((rows,), allowed)
    accepted, following = accept_chain(logits, draft, allowed, sampling, *keys(rows))
    assert accepted.dtype == following.dtype == torch.int64
    assert (accepted >= 0).all()
    assert (accepted <= allowed).all()
    assert (following >= 0).all()
    assert (following < logits.shape[-1]).all()
    return accepted, following


def random_logits(rows: int, gamma: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, gamma + 1, VOCAB, generator=generator, dtype=torch.float64) * 2


def distribution(tokens: Tensor) -> Tensor:
    return tokens.bincount(minlength=VOCAB).double() / len(tokens)


def assert_same_distribution(tokens: Tensor, p: Tensor) -> None:
    """No cell further from p than five standard deviations; impossible tokens never appear."""
    deviation = (p * (1 - p) / len(tokens)).sqrt()
    assert ((distribution(tokens) - p).abs() <= 5 * deviation).all()


def drafted(q_logits: Tensor, sampling: Sampling, rows: int) -> Draft:
    """Drafts of each row, drawn as the engine draws them."""
    q = probabilities(q_logits, sampling).expand(rows, *q_logits.shape)
    request, start = keys(rows)
    u = uniform(
        sampling.seed,
        request[:, None],
        start[:, None],
        torch.arange(len(q_logits)),
        Purpose.DRAFT,
    )
    return Draft(draw(q, u), q)


@given(
    best=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    tokens=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    allowed=st.integers(0, 4),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_greedy_is_equality_with_the_arg_max(
    best: list[int], tokens: list[int], allowed: int
) -> None:
    count = 0
    while count < allowed and tokens[count] == best[count]:
        count += 1
    found = accept(prefer([best]), Draft(torch.tensor([tokens])), GREEDY, allowed)
    assert [int(x) for x in found] == [count, best[count]]


def test_greedy_rows_are_judged_apart() -> None:
    logits = prefer([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    draft = Draft(torch.tensor([[1, 2, 3], [0, 2, 3], [1, 0, 3], [1, 2, 3]]))
    accepted, following = accept(logits, draft, GREEDY, torch.tensor([3, 3, 3, 1]))
    assert accepted.tolist() == [3, 0, 1, 1]
    assert following.tolist() == [4, 1, 2, 2]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=SEED)])
def test_without_drafts_one_token_follows(sampling: Sampling) -> None:
    accepted, following = accept(prefer([[3], [1]]) * 1000, None, sampling)
    assert accepted.tolist() == [0, 0]
    assert following.tolist() == [3, 1]


def test_residual_is_what_p_has_above_q() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.2, 0.7, 0.1], [0.0, 0.9, 0.1]])
    expected = torch.tensor([[0.3, 0.0, 0.1], [0.1, 0.0, 0.7]])
    torch.testing.assert_close(residual(p, q), expected)


@pytest.mark.parametrize(
    "q",
    [[0.5, 0.3, 0.2], [0.5 + 1e-7, 0.3 + 1e-7, 0.2], [torch.nan] * 3, [0.1, torch.nan, 0.2]],
    ids=["equal", "above", "nan", "partly nan"],
)
def test_residual_without_mass_is_p(q: list[float]) -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    assert torch.equal(residual(p, torch.tensor([q])), p)


@pytest.mark.parametrize("allowed", [0, 1, 2])
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(1.0, seed=SEED), id="plain"),
        pytest.param(Sampling(0.6, seed=SEED), id="temperature"),
        pytest.param(Sampling(1.5, 0.8, seed=SEED), id="top-p"),
        pytest.param(Sampling(1.0, 1.0, 3, SEED), id="top-k"),
    ],
)
def test_what_is_committed_follows_p(sampling: Sampling, allowed: int) -> None:
    logits = TARGET.log()
    draft = drafted(DRAFT.log(), sampling, DRAWS)
    p = probabilities(logits, sampling)
    accepted, following = accept(logits.expand(DRAWS, 3, VOCAB), draft, sampling, allowed)
    committed = torch.cat([draft.tokens, following[:, None]], dim=1)
    for position in range(allowed + 1):
        reached = accepted >= position
        own = accepted == position
        tokens = torch.where(own, following, committed[:, position])[reached]
        assert_same_distribution(tokens, p[position])
    if allowed:
        # the probability that a draft stands is the overlap of p and q
        overlap = torch.minimum(p[0], probabilities(DRAFT.log(), sampling)[0]).sum()
        assert abs((accepted > 0).double().mean() - overlap) < 5 * 0.5 / DRAWS**0.5


def test_one_hot_drafts_are_exact_too() -> None:
    """A draft that was not drawn at random: q is one-hot, and the residual is p without it."""
    sampling = Sampling(1.0, seed=SEED)
    logits = random_logits(1, 1)[0]
    p = probabilities(logits, sampling)
    tokens = torch.full((DRAWS, 1), 2)
    accepted, following = accept(logits.expand(DRAWS, 2, VOCAB), Draft(tokens), sampling)
    assert abs(accepted.double().mean() - p[0, 2]) < 5 * 0.5 / DRAWS**0.5
    assert (following[accepted == 0] != 2).all()
    first = torch.where(accepted == 1, tokens[:, 0], following)
    assert_same_distribution(first, p[0])
    assert_same_distribution(following[accepted == 1], p[1])


@pytest.mark.parametrize("allowed", [0, 1, 2, 3])
def test_perfect_drafts_stand_as_far_as_they_are_allowed(allowed: int) -> None:
    sampling = Sampling(0.8, seed=SEED)
    logits = random_logits(1, 3)[0]
    draft = drafted(logits[:3], sampling, 2000)
    accepted, following = accept(logits.expand(2000, 4, VOCAB), draft, sampling, allowed)
    assert (accepted == allowed).all()
    assert_same_distribution(following, probabilities(logits, sampling)[allowed])


@pytest.mark.parametrize("q_token", [0.2, 1e-30, 0.0])
def test_an_impossible_draft_never_stands(q_token: float) -> None:
    sampling = Sampling(1.0, top_k=2, seed=SEED)
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0]]).expand(2000, 2, VOCAB)
    q = torch.tensor([0.2, 0.2, 0.2, 0.4 - q_token, q_token]).expand(2000, 1, VOCAB)
    accepted, following = accept(logits, Draft(torch.full((2000, 1), 4), q), sampling)
    assert (accepted == 0).all()
    assert (following < 2).all()


def test_only_what_the_target_could_say_is_committed() -> None:
    sampling = Sampling(1.0, 0.7, 3, SEED)
    logits = random_logits(500, 2)
    p = probabilities(logits, sampling)
    draft = drafted(random_logits(1, 1, seed=5)[0], Sampling(5.0, seed=SEED), 500)
    accepted, following = accept(logits, draft, sampling)
    rows = torch.arange(500)
    assert (p[rows, accepted, following] > 0).all()
    for position in range(2):
        stood = accepted > position
        assert (p[rows, position, draft.tokens[:, position]][stood] > 0).all()


@pytest.mark.parametrize("poison", ["row", "token", "others"])
def test_nan_in_the_draft_is_harmless(poison: str) -> None:
    """The draft's forward may break; what is committed is still a token that the target allows."""
    sampling = Sampling(1.0, top_k=2, seed=SEED)
    logits = random_logits(400, 2)
    p = probabilities(logits, sampling)
    draft = drafted(random_logits(1, 1, seed=5)[0], Sampling(5.0, seed=SEED), 400)
    assert draft.probs is not None
    q = draft.probs.clone()
    own = torch.nn.functional.one_hot(draft.tokens, VOCAB).bool()
    q[{"row": torch.ones_like(own), "token": own, "others": ~own}[poison]] = torch.nan
    accepted, following = accept(logits, Draft(draft.tokens, q), sampling)
    assert (p[torch.arange(400), accepted, following] > 0).all()
    if poison != "others":
        assert (accepted == 0).all()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0.9, 3, SEED)])
def test_an_invalid_target_row_is_still_in_range(sampling: Sampling) -> None:
    """Masked rows compute garbage; `accept` checks that it is a token all the same."""
    logits = torch.full((3, 3, VOCAB), torch.nan)
    logits[1] = torch.inf
    logits[2] = -torch.inf
    draft = Draft(torch.ones(3, 2, dtype=torch.int64), torch.full((3, 2, VOCAB), 0.2))
    accept(logits, draft, sampling)
    accept(logits[:, :1], None, sampling)


def test_rows_past_the_allowed_drafts_are_not_read() -> None:
    sampling = Sampling(1.0, seed=SEED)
    logits = random_logits(300, 3)
    draft = drafted(random_logits(1, 2, seed=5)[0], sampling, 300)
    assert draft.probs is not None
    allowed = torch.arange(300) % 4
    expected = accept(logits, draft, sampling, allowed)
    poisoned, q = logits.clone(), draft.probs.clone()
    past = torch.arange(4) > allowed[:, None]
    poisoned[past] = torch.nan
    q[past[:, 1:]] = torch.nan
    tokens = draft.tokens.masked_fill(past[:, 1:], 0)
    found = accept(poisoned, Draft(tokens, q), sampling, allowed)
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    sampling = Sampling(0.9, 0.95, seed=SEED)
    logits = random_logits(50, 3)
    draft = drafted(random_logits(1, 2, seed=5)[0], sampling, 50)
    assert draft.probs is not None
    request, start = keys(50)
    allowed = torch.arange(50) % 4
    accepted, following = accept_chain(logits, draft, allowed, sampling, request, start)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:20]
    moved = accept_chain(
        logits[order],
        Draft(draft.tokens[order], draft.probs[order]),
        allowed[order],
        sampling,
        request[order],
        start[order],
    )
    assert torch.equal(moved[0], accepted[order])
    assert torch.equal(moved[1], following[order])


def test_seed_request_and_start_key_the_draws() -> None:
    logits = torch.zeros(200, 1, 1000)
    request, start = keys(200)
    none = torch.zeros_like(request)
    settings_of = {
        "as before": (SEED, request, start),
        "seed": (SEED + 1, request, start),
        "request": (SEED, request + 1000, start),
        "start": (SEED, request, start + 1),
    }
    found = {
        name: accept_chain(logits, None, none, Sampling(1.0, seed=seed), r, s)[1]
        for name, (seed, r, s) in settings_of.items()
    }
    again = accept_chain(logits, None, none, Sampling(1.0, seed=SEED), request, start)[1]
    assert torch.equal(again, found.pop("as before"))
    for other in found.values():
        assert (other == again).sum() < 10
