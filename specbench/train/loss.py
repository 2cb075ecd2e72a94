"""Cross-entropy through a frozen LM head, a few tokens at a time."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.compute import uses_triton
from specbench.kernels.cross_entropy import reference
from specbench.kernels.cross_entropy.reference import IGNORED

# logits of one chunk: enough for an efficient product, small beside the rest
_CHUNK_BYTES = 2**28
# rows of a matrix product's tile
_TILE = 128


def head_loss(
    hidden: Tensor, head: Tensor, labels: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of `labels`, and how many of them had the highest logit.

    The gradient is made in the forward pass, chunk by chunk, as the head has none of its own: no
    ``[N, V]`` tensor ever exists. The head multiplies in its own dtype; the softmax is float32.

    Parameters
    ----------
    hidden : Tensor
        `[N, hidden]`.
    head : Tensor
        `[V, hidden]`.
    labels : Tensor
        int64 `[N]`; -100 counts for nothing.
    chunk : int, optional
        Rows at a time; by default as many as 256 MiB of logits hold.

    Returns
    -------
    loss : Tensor
        Scalar; 0 where no label counts.
    correct : Tensor
        Scalar share of the labels that count, without gradient.
    """
    rows = chunk or max(1, _CHUNK_BYTES // (head.element_size() * len(head)))
    if rows > _TILE and chunk is None:
        rows -= rows % _TILE
    loss, correct = _HeadLoss.apply(hidden, head, labels, rows)
    return loss, correct


def cross_entropy_of(head: Tensor) -> Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]]:
    """The kernel for logits of `head`: Triton's on a CUDA device, where it takes their type."""
    if not uses_triton("auto", head.device.type, head.dtype):
        return reference.cross_entropy
    from specbench.kernels.cross_entropy.triton import cross_entropy

    return cross_entropy


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        counted = labels != IGNORED
        share = 1 / counted.sum().clamp(min=1)
        wide = torch.promote_types(head.dtype, torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        correct = torch.zeros((), dtype=wide, device=hidden.device)
        judge = cross_entropy_of(head)
        for begin in range(0, len(hidden), rows):
            part = slice(begin, begin + rows)
            logits = F.linear(hidden[part].to(head.dtype), head)
            lost, hit = judge(logits, labels[part], gradient is not None)
            loss += lost.sum()
            correct += hit.sum()
            if gradient is not None:
                # scaled after the product, where a row is `hidden` wide and not the vocabulary
                gradient[part] = (logits @ head).to(wide) * share
        ctx.save_for_backward(gradient)
        accuracy = correct * share
        ctx.mark_non_differentiable(accuracy)
        return loss * share, accuracy

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None
