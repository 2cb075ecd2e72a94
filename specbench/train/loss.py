"""Cross-entropy through a frozen LM head, a few tokens at a time."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
# float32 logits of one chunk: large enough for an efficient product, small beside the rest
_CHUNK_BYTES = 2**28


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
    rows = chunk or max(1, _CHUNK_BYTES // (4 * len(head)))
    loss, correct = _HeadLoss.apply(hidden, head, labels, rows)
    return loss, correct


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
        for begin in range(0, len(hidden), rows):
            part = slice(begin, begin + rows)
            valid, label = counted[part], labels[part].clamp(min=0)[:, None]
            logits = F.linear(hidden[part].to(head.dtype), head)
            log_probs = torch.log_softmax(logits, -1, dtype=wide)
            loss -= (log_probs.gather(1, label).squeeze(1) * valid).sum()
            correct += ((logits.argmax(-1) == label.squeeze(1)) & valid).sum()
            if gradient is not None:
                weights = log_probs.exp_()
                weights.scatter_add_(1, label, weights.new_full(label.shape, -1))
                # scaled after the product, where a row is `hidden` wide and not the vocabulary
                gradient[part] = (weights.to(head.dtype) @ head) * (valid * share)[:, None]
        ctx.save_for_backward(gradient)
        accuracy = correct * share
        ctx.mark_non_differentiable(accuracy)
        return loss * share, accuracy

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None
