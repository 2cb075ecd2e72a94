"""The draft's loss on rows of text: what training minimises and evaluation reports."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.compute import make_compute
from specbench.engine.model import Transformer
from specbench.methods.longspec.block import DraftBlock, rotation
from specbench.train.attention import TargetAttention, lagged, windowed
from specbench.train.loss import head_loss

ANCHORS = 4


@dataclass(frozen=True)
class Seen:
    """What the frozen target gives the draft of some rows.

    Attributes
    ----------
    keys, values : Tensor
        `[B, L, Hkv, D]` of its last layer, keys rotated.
    positions : Tensor
        int64 `[B, L]`, the draft's too.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor


def offset_positions(offsets: Tensor, length: int) -> Tensor:
    """Positions `[B, L]`: the first four stay 0 to 3, the rest are moved by `offsets` `[B]`.

    The first tokens collect attention wherever the text continues, so they keep their place while
    all others learn to stand anywhere. Source: anchor-offset indices, Yang et al., "LongSpec",
    arXiv 2502.17421.
    """
    index = torch.arange(length, device=offsets.device)
    return index + offsets[:, None] * (index >= ANCHORS)


@torch.no_grad()
def watch(target: Transformer, tokens: Tensor, positions: Tensor) -> Seen:
    """Run the target over rows `[B, L]` once; by the engine's kernels on a CUDA device."""
    attention = TargetAttention(target.config, tokens, target.dtype)
    make_compute("auto", target, attention.cache).hidden(tokens, positions, attention)
    return Seen(attention.keys, attention.values, positions)


def draft_hidden(
    target: Transformer, block: DraftBlock, tokens: Tensor, seen: Seen, lag: int
) -> Tensor:
    """What the LM head takes at every position, the target's KV `lag` tokens behind.

    Parameters
    ----------
    target : Transformer
        Gives embedding and rotation.
    block : DraftBlock
        Its weights may be wider than the target's: the residual stream is of their type, and the
        products of the target's.
    tokens : Tensor
        int64 `[B, L]`.
    seen : Seen
        Of the same rows.
    lag : int
        1 for a draft of depth 1.

    Returns
    -------
    Tensor
        `[B, L, hidden]`.
    """
    scale, window = target.config.head_dim**-0.5, block.config.window
    with torch.autocast(tokens.device.type, target.dtype, enabled=target.dtype != block.o.dtype):
        return block(
            F.embedding(tokens, target.embed).to(block.o.dtype),
            rotation(target, seen.positions),
            lambda q, k, v: windowed(q, k, v, window, scale),
            lambda q: lagged(q, seen.keys, seen.values, lag, scale),
        )


def draft_loss(
    target: Transformer,
    block: DraftBlock,
    tokens: Tensor,
    labels: Tensor,
    seen: Seen,
    lag: int,
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of `labels` `[B, L]`, and the share that had the highest logit.

    Labels of the text, as the paper has them: the draft learns the data, not the target's own
    distribution.
    """
    hidden = draft_hidden(target, block, tokens, seen, lag)
    return head_loss(hidden.flatten(0, 1), target.head, labels.flatten())
