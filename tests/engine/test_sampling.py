"""Temperature, top-k and top-p against plain Python, and drawing by the cumulative sum."""

import math
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specbench.config import RunConfig
from specbench.engine.sampling import Sampling, argmax, draw, invalid, probabilities

BELOW_ONE = 1 - 2.0**-53
DTYPES = [torch.float32, torch.float64]
# quarters: ties are exact, and stay so after the shift by the maximum
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=12)


def simple(logits: Sequence[float], temperature: float, top_k: int) -> list[float]:
    """Softmax after temperature and top-k, token by token."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    if 0 < top_k < len(logits):
        kth = sorted(logits, reverse=True)[top_k - 1]
        weights = [w if x >= kth else 0.0 for w, x in zip(weights, logits, strict=True)]
    return [w / sum(weights) for w in weights]


def nucleus(probs: Sequence[float], top_p: float) -> list[float]:
    """The shortest list of best tokens whose mass reaches `top_p`, the lower id first of equals."""
    kept: list[int] = []
    for token in sorted(range(len(probs)), key=lambda i: -probs[i]):
        if math.fsum(probs[i] for i in kept) >= top_p:
            break
        kept.append(token)
    mass = math.fsum(probs[i] for i in kept)
    return [p / mass if i in kept else 0.0 for i, p in enumerate(probs)]


def row(values: Sequence[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.1, 0.5, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_equals_plain_python(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    expected = simple(logits, temperature, top_k)
    if top_p < 1:
        masses = accumulate(sorted(expected, reverse=True))
        # a mass that meets top_p to the last bits may fall on either side of it
        assume(all(abs(mass - top_p) > 1e-9 for mass in masses))
        expected = nucleus(expected, top_p)
    found = probabilities(row(logits), Sampling(temperature, top_p, top_k))
    torch.testing.assert_close(found, row(expected), rtol=1e-12, atol=1e-15)
    assert [p > 0 for p in found.tolist()] == [p > 0 for p in expected]


@given(logits=LOGITS, top_p=st.floats(0.01, 0.99))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_top_p_is_the_shortest_list_that_reaches_the_mass(
    logits: list[float], top_p: float
) -> None:
    full = probabilities(row(logits), Sampling(1.0))
    kept = probabilities(row(logits), Sampling(1.0, top_p)) > 0
    assert kept.any()
    mass = full[kept].sum().item()
    assert mass >= top_p - 1e-12
    assert mass - full[kept].min().item() < top_p + 1e-12
    if not kept.all():
        assert full[kept].min() >= full[~kept].max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_with_the_kth_are_kept(dtype: torch.dtype) -> None:
    logits = row([1.0, 3.0, 2.0, 2.0, 0.5, 2.0], dtype)
    kept = probabilities(logits, Sampling(0.7, top_k=2)) > 0
    assert kept.tolist() == [False, True, True, True, False, True]


def test_top_k_comes_before_top_p() -> None:
    # the mass is that of the two tokens left: 0.5 of it is reached by the first alone
    logits = row([math.log(p) for p in (0.4, 0.3, 0.2, 0.1)])
    assert probabilities(logits, Sampling(1.0, 0.5, 2)).tolist() == [1, 0, 0, 0]
    assert (probabilities(logits, Sampling(1.0, 0.5)) > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("top_k", [0, 4, 5, 1000])
def test_top_k_of_everything_changes_nothing(top_k: int) -> None:
    logits = row([1.0, 3.0, 2.0, 2.5])
    found = probabilities(logits, Sampling(1.0, top_k=top_k))
    assert torch.equal(found, logits.softmax(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_p", [0.5, 1e-3, 1e-30, 1e-60])
def test_top_p_keeps_the_best_token(top_p: float, dtype: torch.dtype) -> None:
    found = probabilities(row([1.0, 9.0, 2.0], dtype), Sampling(1.0, top_p))
    assert found.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-40, 1e-60, 5e-324])
def test_tiny_temperatures_choose_the_best_token(temperature: float, dtype: torch.dtype) -> None:
    found = probabilities(row([1.0, 3.0, -2.0, 2.5], dtype), Sampling(temperature))
    assert found.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_share_at_any_temperature(dtype: torch.dtype) -> None:
    found = probabilities(row([2.0, 1.0, 2.0], dtype), Sampling(1e-20))
    assert found.tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.6, 0.9), Sampling(1.3, 0.9, 40), Sampling(2.0, 1.0, 7)]
)
def test_rows_sum_to_one(sampling: Sampling) -> None:
    logits = torch.randn(3, 2, 5000, generator=torch.Generator().manual_seed(0)) * 5
    found = probabilities(logits, sampling)
    assert found.shape == logits.shape
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 2), rtol=0, atol=1e-5)
    # a row's distribution is its own affair
    assert torch.equal(found[1, 1], probabilities(logits[1, 1], sampling))


def test_masked_tokens_stay_impossible() -> None:
    logits = row([1.0, -torch.inf, 2.0, -torch.inf])
    for sampling in (Sampling(1.0), Sampling(100.0, 0.999), Sampling(1.0, top_k=3)):
        assert (probabilities(logits, sampling)[[1, 3]] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [2, 7, 1000, 50_000])
def test_argmax_takes_the_lowest_id_among_equals(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.zeros(4, vocab, dtype=dtype)
    firsts = [0, vocab // 3, vocab // 2, vocab - 1]
    for r, first in enumerate(firsts):
        logits[r, first:] = 1
    assert argmax(logits).tolist() == firsts


def test_invalid_rows() -> None:
    inf, nan = torch.inf, torch.nan
    rows = [
        ([0.0, 1.0, 2.0], False),
        ([-inf, 1.0, -inf], False),
        ([-3e38, 3e38, 0.0], False),
        ([0.0, nan, 2.0], True),
        ([nan, -inf, -inf], True),
        ([nan, inf, 0.0], True),
        ([0.0, inf, 2.0], True),
        ([-inf, -inf, -inf], True),
    ]
    logits = torch.tensor([values for values, _ in rows]).view(4, 2, 3)
    assert invalid(logits).flatten().tolist() == [bad for _, bad in rows]


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any),
    u=st.one_of(
        st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.25, 0.5, BELOW_ONE, 2.0**-53])
    ),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_draw_inverts_the_cumulative_sum(weights: list[int], u: float) -> None:
    threshold = u * sum(weights)
    expected = next(i for i, c in enumerate(accumulate(weights)) if c > threshold)
    token = int(draw(row(weights), row([u])[0]))
    assert token == expected
    assert weights[token] > 0


@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.3, 1 - 2.0**-20, BELOW_ONE])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_draw_never_gives_an_impossible_token(dtype: torch.dtype, scale: float, u: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(8, 50_000, generator=generator, dtype=dtype) * scale
    weights[torch.rand(weights.shape, generator=generator) < 0.9] = 0
    weights[:, :100] = 0
    weights[:, -100:] = 0
    tokens = draw(weights, torch.full((8,), u, dtype=torch.float64))
    assert tokens.dtype == torch.int64
    assert (weights.gather(1, tokens[:, None]) > 0).all()


def test_draw_where_the_product_rounds_up_to_the_sum() -> None:
    least = 5e-324
    assert int(draw(row([0.0, least, 0.0]), row([BELOW_ONE])[0])) == 1


def test_draw_from_one_hot() -> None:
    for u in (0.0, 0.5, BELOW_ONE):
        tokens = draw(torch.eye(6), torch.full((6,), u, dtype=torch.float64))
        assert tokens.tolist() == list(range(6))


def test_draw_keeps_the_leading_shape() -> None:
    weights = torch.rand(2, 3, 4, 7, generator=torch.Generator().manual_seed(0))
    u = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = draw(weights, u)
    assert tokens.shape == (2, 3, 4)
    assert int(tokens[1, 2, 3]) == int(draw(weights[1, 2, 3], u[1, 2, 3]))


def test_draw_follows_the_weights() -> None:
    weights = row([1, 0, 2, 5])
    u = (torch.arange(8000, dtype=torch.float64) + 0.5) / 8000
    counts = draw(weights.expand(8000, 4), u).bincount(minlength=4)
    assert counts.tolist() == [1000, 0, 2000, 5000]


@pytest.mark.parametrize("weights", [[torch.nan] * 3, [1.0, torch.nan, 2.0], [0.0] * 3])
def test_draw_from_an_invalid_row_is_still_a_token(weights: list[float]) -> None:
    """A row that is not read, or that is reported, must not index out of the vocabulary."""
    for u in (0.0, 0.5, BELOW_ONE):
        assert 0 <= int(draw(row(weights), row([u])[0])) < 3


def test_settings_come_from_the_configuration() -> None:
    config = RunConfig(temperature=0.7, top_p=0.9, top_k=40, seed=5)
    assert Sampling.from_config(config) == Sampling(0.7, 0.9, 40, 5)
    assert not Sampling.from_config(config).greedy
    assert Sampling.from_config(RunConfig()).greedy


def test_repeats_draw_other_numbers() -> None:
    config = RunConfig(temperature=1.0, seed=2**63 - 1)
    seeds = [Sampling.from_config(config, repeat).seed for repeat in range(50)]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**64 for seed in seeds)
    neighbour = config.model_copy(update={"seed": 2**63 - 2})
    assert not set(seeds) & {Sampling.from_config(neighbour, r).seed for r in range(50)}
