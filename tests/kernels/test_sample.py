"""Temperature, top-k, top-p and the draw without a sort, against the engine's sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine import random, sampling
from specbench.engine.random import Purpose
from specbench.engine.sampling import Sampling
from specbench.kernels.head import reference
from tests.support.buffers import DEVICE, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.head.sample import SampleLaunch, probabilities, sample
from specbench.kernels.head.uniform import uniform

# numpy, which the interpreter computes with, warns of infinities
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
SMALL = SampleLaunch(group=16, chunk=128, step=64, few=16, list_block=64, capacity=80, num_warps=4)
NAN, INF = torch.nan, torch.inf
BELOW_ONE = 1 - 2.0**-53
ALL = [Sampling(0.8), Sampling(0.8, 0.9), Sampling(0.8, 1.0, 7), Sampling(0.8, 0.9, 7)]


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def row(*logits: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([logits], dtype=dtype, device=DEVICE)


def numbers(count: int) -> Tensor:
    return torch.linspace(0, BELOW_ONE, count, dtype=torch.float64, device=DEVICE)


def assert_same(logits: Tensor, chosen: Sampling) -> list[bool]:
    """The engine's distribution; which tokens of the first row are kept."""
    found = probabilities(logits, chosen, SMALL)
    expected = sampling.probabilities(logits.float(), chosen)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
    # hardware may flush what is smaller than a normal number
    assert torch.equal(found > 1e-36, expected > 1e-36)
    return (found[0] > 1e-36).tolist()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (0.6, 0, 1.0),
        (1.7, 0, 0.9),
        (0.6, 0, 0.3),
        (1.7, 1, 1.0),
        (0.6, 7, 1.0),
        (1.7, 50, 0.9),
        (0.6, 299, 0.5),
        (1.0, 300, 0.999),
    ],
)
def test_equals_the_engine(temperature: float, top_k: int, top_p: float) -> None:
    logits = inputs(1, 3, 300, dtype=torch.float32, scale=4)
    assert_same(logits, Sampling(temperature, top_p, top_k))


@pytest.mark.parametrize("chosen", ALL)
def test_half_types_are_the_numbers_they_hold(chosen: Sampling) -> None:
    logits = inputs(1, 2, 150, dtype=torch.bfloat16, scale=4)
    assert_same(logits, chosen)


@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=12),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 100.0]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.05, 0.31, 0.77, 0.97, 1.0]),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_many_ties_equal_the_engine(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    chosen = Sampling(temperature, top_p, top_k)
    # a mass that meets top_p to the last bits may fall on either side of it
    exact = sampling.probabilities(
        row(*logits, dtype=torch.float64), Sampling(temperature, 1, top_k)
    )
    masses = exact.sort(descending=True).values.cumsum(-1)
    if ((masses - top_p).abs() > 1e-5).all():
        assert_same(row(*logits), chosen)


def test_ties_with_the_kth_are_kept() -> None:
    kept = assert_same(row(1.0, 3.0, 2.0, 2.0, 0.5, 2.0), Sampling(0.7, top_k=2))
    assert kept == [False, True, True, True, False, True]


def test_neighbouring_floats_are_told_apart() -> None:
    logits = torch.zeros(1, 20, device=DEVICE)
    steps = torch.randperm(19, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits[0, 1:] = -1 - steps * 2.0**-23
    for top_k in (4, 9, 15):
        kept = assert_same(logits, Sampling(1.0, top_k=top_k))
        assert sum(kept) == top_k
    weights = torch.full((1, 20), 5.0, device=DEVICE)
    weights[0, ::2] = 5.0 - 2.0**-20
    kept = assert_same(weights, Sampling(1.0, 0.44))
    assert kept == [i % 2 == 1 and i < 18 for i in range(20)]


@pytest.mark.parametrize("chosen", [*ALL, Sampling(0.8, 0.9, 100)])
@pytest.mark.parametrize("tall", [0, 30, 3000])
def test_a_whole_vocabulary(chosen: Sampling, tall: int) -> None:
    """A flat row, one in which a few tokens stand out by far, and one with more than are listed."""
    vocab = 151_936 if DEVICE != "cpu" else 40_003
    generator = torch.Generator().manual_seed(tall)
    logits = torch.randn(2, vocab, generator=generator)
    places = torch.randint(vocab, (2, tall), generator=generator)
    logits.scatter_(1, places, 12 + 6 * torch.rand(2, tall, generator=generator))
    logits = logits.to(torch.bfloat16).to(DEVICE)
    expected = sampling.probabilities(logits.double(), chosen)
    found = probabilities(logits, chosen)
    # float32 sums may move the end of top-p by a token
    assert (found - expected).abs().sum(-1).max() < 1e-4
    assert (found.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("distance", [4, 8, 16])
def test_tokens_at_any_distance_are_listed(distance: float) -> None:
    logits = torch.full((1, 30), -50.0, device=DEVICE)
    logits[0, 5], logits[0, 20:23] = 0.0, -distance
    assert sum(assert_same(logits, Sampling(1.0, top_k=3))) == 4


def test_top_k_beyond_the_finite_logits() -> None:
    assert assert_same(row(-INF, 1.0, -INF, 0.0), Sampling(1.0, top_k=3)) == [0, 1, 0, 1]


@pytest.mark.parametrize("top_p", [0.5, 1e-3, 1e-30, 1e-60])
def test_top_p_keeps_the_best_token(top_p: float) -> None:
    assert assert_same(row(1.0, 9.0, 2.0), Sampling(1.0, top_p)) == [False, True, False]


def test_top_p_ends_among_equals_with_the_lower_ids() -> None:
    """Two of a hundred equals are 2 %, whatever block they are in."""
    logits = torch.zeros(1, 300, device=DEVICE)
    logits[0, ::3] = 30.0
    kept = assert_same(logits, Sampling(1.0, 0.4951))
    assert [i for i, k in enumerate(kept) if k] == list(range(0, 150, 3))


def test_top_p_counts_the_mass_that_top_k_leaves() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], device=DEVICE).log()
    assert assert_same(logits, Sampling(1.0, 0.5, 2)) == [True, False, False, False]
    assert assert_same(logits, Sampling(1.0, 0.5)) == [True, True, False, False]


@pytest.mark.parametrize("spread", [0.0, 1e-3, 5.0, 300.0])
def test_flat_and_peaked_rows(spread: float) -> None:
    """From a list of candidates that is the whole row, to one that is a single token."""
    logits = inputs(2, 1, 300, dtype=torch.float32, scale=spread)
    for top_k, top_p in ((20, 1.0), (0, 0.957), (100, 0.9)):
        assert_same(logits, Sampling(1.0, top_p, top_k))


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-60])
def test_tiny_temperatures_choose_the_best_tokens(temperature: float) -> None:
    assert assert_same(row(1.0, 3.0, -2.0, 3.0), Sampling(temperature)) == [0, 1, 0, 1]


@pytest.mark.parametrize("chosen", ALL)
def test_bad_rows_are_flagged_and_stay_alone(chosen: Sampling) -> None:
    good = inputs(3, 20, dtype=torch.float32, scale=2)
    logits = good.repeat(6, 1)
    logits[1, 5], logits[2, 19], logits[3, 0], logits[4] = NAN, INF, -INF, -INF
    u = numbers(6)
    token, probs, bad = sample(logits, chosen, u, SMALL)
    expected = reference.sample(logits, chosen, u)
    assert bad.tolist() == [False, True, True, False, True, False]
    assert torch.equal(bad, expected[2])
    assert probs[bad].isnan().all()
    assert (token[bad] == 0).all()
    torch.testing.assert_close(probs, expected[1], rtol=1e-5, atol=1e-9, equal_nan=True)
    assert torch.equal(token, expected[0])


@pytest.mark.parametrize("chosen", ALL)
def test_the_draw_is_the_engines(chosen: Sampling) -> None:
    logits = inputs(4, 6, 300, dtype=torch.float32, scale=3)
    u = numbers(6)
    token, probs, _ = sample(logits, chosen, u, SMALL)
    assert token.dtype == torch.int64
    assert torch.equal(token, sampling.draw(probs, u))
    assert (probs.gather(1, token[:, None]) > 0).all()
    assert torch.equal(probs, probabilities(logits, chosen, SMALL))


def test_the_first_and_the_last_number_draw_possible_tokens() -> None:
    logits = torch.full((2, 200), -INF, device=DEVICE)
    logits[:, 150:160] = 0.0
    u = torch.tensor([0.0, BELOW_ONE], dtype=torch.float64, device=DEVICE)
    assert sample(logits, Sampling(1.0), u, SMALL)[0].tolist() == [150, 159]


@pytest.mark.parametrize(
    ("chosen", "draws"), [(Sampling(1.0), 200), (Sampling(1.3, 0.95, 9), 40)], ids=["all", "best"]
)
def test_drawn_tokens_follow_the_distribution(chosen: Sampling, draws: int) -> None:
    """Chi-square of tokens drawn with the counter-based numbers."""
    draws = draws if DEVICE == "cpu" else 50_000
    logits = inputs(5, 12, dtype=torch.float32)
    request = torch.arange(draws, device=DEVICE)
    u = uniform(9, request, request * 0 + 3, 0, Purpose.DRAFT)
    token, _, _ = sample(
        logits.expand(draws, 12), chosen, u, SampleLaunch(16, 16, 16, 16, 16, 16, num_warps=1)
    )
    expected = sampling.probabilities(logits[None].double(), chosen)[0] * draws
    counts = token.bincount(minlength=12)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((counts - expected) ** 2 / expected)[possible].sum().item()
    freedom = int(possible.sum()) - 1
    # mean and six standard deviations
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


def test_uniform_is_the_engines_bit_for_bit() -> None:
    request = torch.tensor([0, 5, 2**32 - 1], device=DEVICE)
    start = torch.tensor([7, 2**31, 100_000], device=DEVICE)
    offset = torch.arange(4, device=DEVICE)
    for seed in (0, 1, 2**31, 0x9E3779B97F4A7C15, 2**64 - 1):
        for arguments in (
            (request, start, 0, Purpose.DRAFT),
            (request, start, 16, Purpose.ACCEPT),
            (request, start, offset[:3], Purpose.TARGET),
            (request[:, None], start[:, None], offset, Purpose.ACCEPT),
            (request[:1], start[:1], 1, Purpose.SELECT),
        ):
            found, expected = uniform(seed, *arguments), random.uniform(seed, *arguments)
            assert found.shape == expected.shape
            assert torch.equal(found, expected)
    assert uniform(1, request[:0], start[:0], 0, Purpose.DRAFT).shape == (0,)
    with pytest.raises(ValueError, match="two dimensions"):
        uniform(1, request.view(3, 1, 1), start, 0, Purpose.DRAFT)


def test_shapes_and_wrong_inputs() -> None:
    logits = inputs(6, 2, 3, 20, dtype=torch.float32)
    found = probabilities(logits, Sampling(1.0, 0.9), SMALL)
    assert found.shape == logits.shape
    torch.testing.assert_close(found, sampling.probabilities(logits, Sampling(1.0, 0.9)))
    assert probabilities(logits[:, :0], Sampling(1.0)).shape == (2, 0, 20)
    with pytest.raises(ValueError, match="arg-max"):
        probabilities(logits, Sampling())
    with pytest.raises(ValueError, match="float64"):
        probabilities(logits.double(), Sampling(1.0))
    with pytest.raises(ValueError, match="adjacent"):
        sample(logits[0].T, Sampling(1.0), numbers(20))
