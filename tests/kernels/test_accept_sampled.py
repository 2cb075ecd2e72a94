"""The rejection rule in two launches, against the engine's."""

import pytest
import torch
from torch import Tensor

from specbench.engine import acceptance
from tests.support.buffers import DEVICE, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.head.accept import accept_sampled

VOCAB, GAMMA, ROWS = 75, 5, 40
BELOW_ONE = 1 - 2.0**-53


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def distributions(seed: int, *shape: int, kept: int = VOCAB) -> Tensor:
    """Random ones over `kept` tokens."""
    logits = inputs(seed, *shape, VOCAB, dtype=torch.float32, scale=2)
    worst = logits.topk(kept, -1).values[..., -1:]
    return logits.masked_fill(logits < worst, -torch.inf).softmax(-1)


def numbers(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).to(DEVICE)


def drawn(q: Tensor, seed: int) -> Tensor:
    return q.flatten(0, 1).multinomial(1, generator=torch.Generator(DEVICE).manual_seed(seed))


@pytest.mark.parametrize("kept", [VOCAB, 9])
@pytest.mark.parametrize("closeness", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("random", [True, False])
def test_equals_the_engine(kept: int, closeness: float, random: bool) -> None:
    """Drafts like the target's and unlike them, allowed in any number."""
    p, other = (
        distributions(1, ROWS, GAMMA + 1, kept=kept),
        distributions(2, ROWS, GAMMA, kept=kept),
    )
    q = closeness * p[:, :GAMMA] + (1 - closeness) * other
    tokens = drawn(q, 3).view(ROWS, GAMMA)
    allowed = (torch.arange(ROWS, device=DEVICE) * 7) % (GAMMA + 1)
    given = tokens, q.contiguous() if random else None, allowed
    u = numbers(4, ROWS, GAMMA), numbers(5, ROWS, GAMMA + 1)
    accepted, following = accept_sampled(p, *given, *u, chunk=16)
    expected = acceptance.accept_sampled(p, *given, *u)
    assert torch.equal(accepted, expected[0])
    assert torch.equal(following, expected[1])
    assert (accepted <= allowed).all()
    if closeness < 1:
        assert (accepted < allowed).any()
    else:
        assert (accepted == allowed).all() or not random


def test_a_rejected_draft_never_follows() -> None:
    p = distributions(1, ROWS, 2)
    tokens = p[:, :1].argmin(-1)
    zeros = torch.zeros(ROWS, 1, dtype=torch.float64, device=DEVICE)
    one = torch.ones(ROWS, dtype=torch.int64, device=DEVICE)
    for last in (0.0, BELOW_ONE):
        u_next = torch.full((ROWS, 2), last, dtype=torch.float64, device=DEVICE)
        accepted, following = accept_sampled(p, tokens, None, one, zeros + BELOW_ONE, u_next, 16)
        assert (accepted == 0).all()
        assert (following != tokens[:, 0]).all()
        assert (p[:, 0].gather(1, following[:, None]) > 0).all()


def test_rounding_that_leaves_nothing_draws_from_the_target() -> None:
    """q above p throughout: the residual has no mass (`acceptance.residual`)."""
    p = torch.zeros(1, 2, VOCAB, device=DEVICE)
    p[..., 20:30] = 0.1
    q = torch.zeros(1, 1, VOCAB, device=DEVICE)
    q[..., 20:30], q[..., 3] = 0.2, 1.0
    u = torch.full((1, 1), 0.55, dtype=torch.float64, device=DEVICE)
    token = torch.full((1, 1), 3, device=DEVICE)
    one = torch.ones(1, dtype=torch.int64, device=DEVICE)
    accepted, following = accept_sampled(p, token, q, one, u, u.repeat(1, 2), 16)
    assert (accepted.item(), following.item()) == (0, 25)


def test_a_bad_row_stays_alone() -> None:
    p, q = distributions(1, 3, GAMMA + 1), distributions(2, 3, GAMMA)
    tokens = drawn(q, 3).view(3, GAMMA)
    allowed = torch.full((3,), GAMMA, device=DEVICE)
    u = numbers(4, 3, GAMMA), numbers(5, 3, GAMMA + 1)
    expected = accept_sampled(p, tokens, q, allowed, *u, chunk=16)
    spoilt = p.clone()
    spoilt[1] = torch.nan
    found = accept_sampled(spoilt, tokens, q, allowed, *u, chunk=16)
    for before, after in zip(expected, found, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert found[0][1] == 0
    assert 0 <= found[1][1] < VOCAB


def test_what_is_not_dense_is_refused() -> None:
    p, q = distributions(1, 3, GAMMA + 1), distributions(2, 3, GAMMA)
    u = numbers(4, 3, GAMMA), numbers(5, 3, GAMMA + 1)
    allowed = torch.full((3,), GAMMA, device=DEVICE)
    with pytest.raises(ValueError, match="dense"):
        accept_sampled(p[..., ::2], q.argmax(-1), q, allowed, *u)
