"""Cross-entropy of logits, and its gradient in their place, in plain torch."""

import torch
from torch import Tensor

IGNORED = -100


def cross_entropy(logits: Tensor, labels: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
    """What each row loses, and whether its label had the highest logit.

    Parameters
    ----------
    logits : Tensor
        `[N, V]`; where a `gradient` is wanted it takes their place: ``softmax - onehot``.
    labels : Tensor
        int64 `[N]`; a row of -100 counts for nothing: it loses nothing and its gradient is zero.
    gradient : bool

    Returns
    -------
    loss : Tensor
        `[N]`, float32, or float64 of such logits.
    hit : Tensor
        bool `[N]`; of equal logits the first is the highest.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    counted = labels != IGNORED
    label = labels.clamp(min=0)[:, None]
    hit = (logits.argmax(-1) == label.squeeze(1)) & counted
    log_probs = torch.log_softmax(logits, -1, dtype=wide)
    loss = torch.where(counted, -log_probs.gather(1, label).squeeze(1), 0)
    if gradient:
        weights = log_probs.exp_()
        weights.scatter_add_(1, label, weights.new_full(label.shape, -1))
        logits.copy_(weights.masked_fill_(~counted[:, None], 0))
    return loss, hit
