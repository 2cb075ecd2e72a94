"""The chunked loss is the cross-entropy, and never holds all logits."""

import pytest
import torch
import torch.nn.functional as F

from specbench.train.loss import head_loss
from tests.support.memory import peak_bytes


@pytest.mark.parametrize("chunk", [1, 3, 8, 20, None])
def test_loss_and_gradient_equal_torchs(chunk: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 7, generator=generator, dtype=torch.float64).requires_grad_()
    head = torch.randn(11, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(11, (20,), generator=generator)
    labels[[0, 7, 19]] = -100
    loss, correct = head_loss(hidden, head, labels, chunk)
    logits = hidden @ head.T
    expected = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, expected)
    counted = labels != -100
    hits = (logits.argmax(-1) == labels)[counted]
    torch.testing.assert_close(correct, hits.double().mean())
    (ours,) = torch.autograd.grad(loss * 3, hidden)
    (theirs,) = torch.autograd.grad(expected * 3, hidden)
    torch.testing.assert_close(ours, theirs)


def test_nothing_counts() -> None:
    hidden = torch.randn(4, 3).requires_grad_()
    loss, correct = head_loss(hidden, torch.randn(5, 3), torch.full((4,), -100))
    loss.backward()
    assert (loss.item(), correct.item()) == (0, 0)
    assert not hidden.grad.any()  # type: ignore[union-attr]


def test_half_precision_keeps_a_small_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4096, 16, generator=generator).requires_grad_()
    head = torch.randn(64, 16, generator=generator)
    labels = torch.randint(64, (4096,), generator=generator)
    (exact,) = torch.autograd.grad(head_loss(hidden, head, labels)[0], hidden)
    (half,) = torch.autograd.grad(head_loss(hidden, head.bfloat16(), labels)[0], hidden)
    assert half.dtype == torch.float32
    assert (half - exact).norm() < 0.02 * exact.norm()


def test_no_tensor_has_a_row_of_logits_for_every_token() -> None:
    tokens, vocab = 4096, 8192
    hidden, head = torch.randn(tokens, 8).requires_grad_(), torch.randn(vocab, 8)
    labels = torch.zeros(tokens, dtype=torch.int64)
    peak = peak_bytes(lambda: head_loss(hidden, head, labels, 64)[0].backward())
    assert peak < tokens * vocab * 4 / 8
