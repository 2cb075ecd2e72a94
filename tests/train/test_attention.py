"""Attention over whole rows equals attention with a dense mask."""

import pytest
import torch
from torch import Tensor

from specbench.train.attention import causal, lagged, windowed

SCALE = 0.4


def inputs(length: int, heads: int = 4, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    sizes = (heads, kv_heads, kv_heads)
    q, k, v = (
        torch.randn(2, length, n, 6, generator=generator, dtype=torch.float64).requires_grad_()
        for n in sizes
    )
    return q, k, v


def dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """By definition; a query that sees nothing gives zeros."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def distance(length: int) -> Tensor:
    index = torch.arange(length)
    return index[:, None] - index


def same(ours: Tensor, expected: Tensor, tensors: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(ours, expected)
    outer = torch.randn(ours.shape, dtype=ours.dtype)
    for one, two in zip(
        torch.autograd.grad(ours, tensors, outer),
        torch.autograd.grad(expected, tensors, outer),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 10, 11, 23])
def test_the_window_is_exact_at_any_length(length: int, heads: tuple[int, int]) -> None:
    q, k, v = inputs(length, *heads)
    d = distance(length)
    same(windowed(q, k, v, 5, SCALE), dense(q, k, v, (d >= 0) & (d < 5)), (q, k, v))


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_the_lag_hides_the_last_keys(lag: int) -> None:
    q, k, v = inputs(9)
    ours = lagged(q, k, v, lag, SCALE)
    assert not ours[:, :lag].any()
    same(ours, dense(q, k, v, distance(9) >= lag), (q, k, v))


def test_causal_sees_itself() -> None:
    q, k, v = inputs(7)
    same(causal(q, k, v, SCALE), dense(q, k, v, distance(7) >= 0), (q, k, v))
