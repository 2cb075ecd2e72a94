"""Training on a CUDA device: the same losses, and halves that stay close."""

from pathlib import Path

import pytest
import torch

from specbench.train.attention import TargetAttention, causal, lagged, windowed
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.config import TrainConfig
from specbench.train.loss import head_loss
from specbench.train.objective import offset_positions, watch
from specbench.train.trainer import Trainer
from tests.train.toy import CONTEXT, Toy, toy, trainer

pytestmark = pytest.mark.gpu


def moved(found: Toy, dtype: torch.dtype, **changes: object) -> Trainer:
    """The trainer of a toy, on the device."""
    ours = trainer(found, device="cuda", **changes)
    target = found.target.cuda()
    for weight in target.parameters():
        weight.data = weight.data.to(dtype)
    target.dtype = dtype
    block = ours.block.cuda()
    config = TrainConfig(**ours.config.model_dump())
    return Trainer(config, target, block, found.corpus, CONTEXT)


def test_steps_are_those_of_the_cpu() -> None:
    theirs, ours = trainer(toy()), moved(toy(), torch.float32)
    for number in range(5):
        assert ours.step(number).loss == pytest.approx(theirs.step(number).loss, rel=1e-3)


def test_half_precision_learns() -> None:
    ours = moved(toy(), torch.bfloat16)
    losses = [ours.step(number).loss for number in range(100)]
    assert losses[-1] < losses[0] - 1
    assert all(weight.dtype == torch.float32 for weight in ours.block.parameters())


def test_a_checkpoint_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = moved(toy(), torch.float32)
    expected = [whole.step(number).loss for number in range(8)]
    first, second = moved(toy(), torch.float32), moved(toy(), torch.float32)
    for number in range(4):
        first.step(number)
    state = {"step": 4, "tokens": 100, "seconds": 1.5}
    save_checkpoint(tmp_path, first.block, first.optimizer, state)
    load_checkpoint(tmp_path, second.block, second.optimizer)
    for number in range(4, 8):
        # atomics in a backward pass may add in another order
        assert second.step(number).loss == pytest.approx(expected[number], rel=1e-3)


@pytest.mark.parametrize("kind", ["causal", "windowed", "lagged"])
def test_attention_in_half_precision(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 1500, 6, 64), (2, 1500, 2, 64), (2, 1500, 2, 64))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    call = {
        "causal": lambda q, k, v: causal(q, k, v, 0.125),
        "windowed": lambda q, k, v: windowed(q, k, v, 512, 0.125),
        "lagged": lambda q, k, v: lagged(q, k, v, 5, 0.125),
    }[kind]
    half = [x.cuda().bfloat16().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().float().cpu().requires_grad_() for x in half]
    outs = call(*half), call(*exact)
    torch.testing.assert_close(outs[0].float().cpu(), outs[1], rtol=2e-2, atol=2e-2)
    for one, two in zip(
        torch.autograd.grad(outs[0].float().square().sum(), half),
        torch.autograd.grad(outs[1].square().sum(), exact),
        strict=True,
    ):
        assert (one.float().cpu() - two).norm() < 0.03 * two.norm()


def test_the_loss_over_a_real_vocabulary_takes_little_memory() -> None:
    tokens, hidden, vocab = 32768, 896, 151936
    x = torch.randn(tokens, hidden, device="cuda").requires_grad_()
    head = torch.randn(vocab, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
    labels = torch.randint(vocab, (tokens,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    head_loss(x, head, labels)[0].backward()
    # all logits would be 18.5 GiB in float32
    assert torch.cuda.max_memory_allocated() - before < 2 * 2**30


def test_the_engines_kernels_show_the_draft_what_torch_does() -> None:
    found = toy()
    target = found.target.cuda()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 32, (3, 90), generator=generator).cuda()
    positions = offset_positions(torch.tensor([0, 7, 100], device="cuda"), 90)
    fast = watch(target, tokens, positions)
    plain = TargetAttention(target.config, tokens, target.dtype)
    with torch.no_grad():
        target(tokens, positions, plain)
    torch.testing.assert_close(fast.keys, plain.keys, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-3, atol=1e-4)
