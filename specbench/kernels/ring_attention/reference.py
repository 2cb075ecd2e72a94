"""Attention of one level of drafts over a ring of tokens and the drafts so far, in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def visible(last: Tensor, depth: int, window: int) -> Tensor:
    """Which committed entries a query sees that stands `depth` tokens after the last of them.

    Parameters
    ----------
    last : Tensor
        int64 `[R]`, position of the last committed token; -1 where there is none.
    depth : int
        0 for the last committed token itself.
    window : int
        Committed tokens that the ring holds, and positions that a query looks back on, its own
        included.

    Returns
    -------
    Tensor
        bool `[R, window]`.
    """
    index = torch.arange(window, device=last.device)
    held = last[:, None] - (last[:, None] - index) % window
    return (held >= 0) & (held > last[:, None] + depth - window)


def ring_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    depth: int,
    drafted: Tensor,
    window: int,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of queries, all of them `depth` after the last committed token, over what they see.

    Parameters
    ----------
    q : Tensor
        `[R, n, H, D]`.
    keys, values : Tensor
        `[R, S, Hkv, D]`, S at least ``window + m``: a committed token at position p lies at index
        ``p % window``, draft i at ``window + i``.
    last : Tensor
        int64 `[R]`, position of the last committed token.
    depth : int
        0 for the last committed token itself.
    drafted : Tensor
        bool `[R, n, m]`, or `[1, n, m]` for all requests: which of the first m drafts each query
        sees.
    window : int
        Committed tokens that the ring holds.
    scale : float
        Multiplies the logits before the softmax.
    out : Tensor, optional
        `[R, n, H, D]`, written.

    Returns
    -------
    Tensor
        `[R, n, H, D]`; zeros for a query that sees nothing.
    """
    rows, count = q.shape[:2]
    size = window + drafted.shape[-1]
    committed = visible(last, depth, window)[:, None].expand(-1, count, -1)
    seen = torch.cat([committed, drafted.expand(rows, -1, -1)], -1)
    # what nobody sees may be memory that nothing has written: a zero weight times NaN is NaN
    unseen = ~seen.any(1)[..., None, None]
    keys, values = (x[:, :size].masked_fill(unseen, 0) for x in (keys, values))
    result = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=seen[:, None],
        scale=scale,
        enable_gqa=True,
    ).transpose(1, 2)
    # not every implementation of it gives these zeros
    result = result.masked_fill(~seen.any(-1)[..., None, None], 0)
    return result if out is None else out.copy_(result)
