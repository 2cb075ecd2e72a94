"""Top-k over the scores of all layers, requests and heads, in plain torch."""

import torch
from torch import Tensor


def select(
    scores: Tensor, ranked: Tensor, keep: Tensor, width: int, sinks: int = 0, window: int = 0
) -> Tensor:
    """The positions with the best scores.

    Parameters
    ----------
    scores : Tensor
        `[layers, R, S, L]`.
    ranked : Tensor
        `[R]`, how many entries of a request are candidates.
    keep : Tensor
        `[R]`, how many of them to keep, at most `width`.
    width : int
        Entries of the result's last axis, a bound known to the host.
    sinks, window : int
        The first and the last candidates that are kept whatever their score; they count
        towards `keep`.

    Returns
    -------
    Tensor
        int64 `[layers, R, S, width]` positions in no order, -1 past ``min(keep, ranked)``.
        Among equal scores any may be chosen. NaN never is, unless it is among `sinks` or `window`:
        a list with too few numbers ends early.
    """
    position = torch.arange(scores.shape[-1], device=scores.device)
    candidate = position < ranked[:, None]
    # minus infinity is left to what is no candidate
    least = torch.finfo(scores.dtype).min
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=least)
    if sinks or window:
        forced = (position < sinks) | (position >= ranked[:, None] - window)
        scores.masked_fill_((forced & candidate)[:, None, :], torch.inf)
    scores.masked_fill_(~candidate[:, None, :], -torch.inf)
    best = scores.topk(width, dim=-1)
    rank = torch.arange(width, device=scores.device)
    kept = rank < torch.minimum(keep, ranked)[:, None]
    return torch.where(kept[:, None, :] & (best.values > -torch.inf), best.indices, -1)
