"""The Triton cross-entropy against plain torch in float64."""

import pytest
import torch
from torch import Tensor

from specbench.kernels.cross_entropy import reference
from tests.support.buffers import DEVICE, KERNEL_DTYPES

pytest.importorskip("triton")

from specbench.kernels.cross_entropy.triton import LossLaunch, cross_entropy

SMALL = LossLaunch(block=64, num_warps=1)


def made(rows: int, vocab: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(rows, vocab, generator=generator)).to(dtype)
    labels = torch.randint(vocab, (rows,), generator=generator)
    labels[::3] = reference.IGNORED
    # some labels are the best
    labels[1::3] = logits[1::3].float().argmax(-1)
    return logits.to(DEVICE), labels.to(DEVICE)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 63), (4, 64), (7, 65), (3, 300)])
def test_loss_hits_and_gradient(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits, labels = made(rows, vocab, dtype)
    exact = logits.double()
    expected = reference.cross_entropy(exact, labels, True)
    loss, hit = cross_entropy(logits, labels, True, SMALL)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    assert hit.tolist() == expected[1].tolist()
    close = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}[dtype]
    torch.testing.assert_close(logits.double(), exact, rtol=close, atol=close / 50)
    assert not logits[::3].any()


def test_without_a_gradient_the_logits_stay() -> None:
    logits, labels = made(4, 100, torch.float32)
    before = logits.clone()
    cross_entropy(logits, labels, False, SMALL)
    assert torch.equal(logits, before)


def test_the_first_of_equals_is_the_highest() -> None:
    logits = torch.zeros(3, 200, device=DEVICE)
    logits[:, [70, 130]] = 5
    labels = torch.tensor([70, 130, 0], device=DEVICE)
    _, hit = cross_entropy(logits, labels, False, SMALL)
    assert hit.tolist() == [True, False, False]
    assert reference.cross_entropy(logits, labels, False)[1].tolist() == [True, False, False]


@pytest.mark.parametrize("at", [0, 63, 64, 130])
def test_a_nan_is_not_lost_and_stays_in_its_row(at: int) -> None:
    logits, labels = made(3, 131, torch.float32)
    labels[:] = 5
    logits[1, at] = torch.nan
    loss, _ = cross_entropy(logits, labels, True, SMALL)
    assert loss.isnan().tolist() == [False, True, False]
    assert logits[[0, 2]].isfinite().all()


def test_tokens_that_cannot_be_are_no_nan() -> None:
    logits, labels = made(3, 200, torch.float32)
    logits[:, 64:] = -torch.inf
    labels[:] = 5
    exact = logits.double()
    expected = reference.cross_entropy(exact, labels, True)
    loss, _ = cross_entropy(logits, labels, True, SMALL)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-6)


def test_strided_rows() -> None:
    logits, labels = made(5, 100, torch.float32)
    wide = torch.full((5, 130), 7.0, device=DEVICE)
    part = wide[:, 10:110]
    part.copy_(logits)
    cross_entropy(part, labels, True, SMALL)
    reference.cross_entropy(logits, labels, True)
    torch.testing.assert_close(part, logits, rtol=1e-5, atol=1e-6)
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 110:] == 7).all()


def test_refused() -> None:
    logits, labels = made(2, 8, torch.float32)
    with pytest.raises(ValueError, match="needs the reference"):
        cross_entropy(logits.double(), labels, True)
    with pytest.raises(ValueError, match="must be adjacent"):
        cross_entropy(logits.T.contiguous().T, labels, True)
