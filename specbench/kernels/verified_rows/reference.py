"""Queries, keys and values of a verified batch, kept for the next drafts, in plain torch."""

import torch
from torch import Tensor


def keep_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    votes: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> None:
    """Copy each request's first and last query, and keys and values of the rows after the first.

    Parameters
    ----------
    query : Tensor
        `[N, H, D]`, rows of all requests one after another; what stands past the last is padding.
    key, value : Tensor
        `[N, Hkv, D]`.
    starts : Tensor
        Integers `[R + 1]`, where the rows of each request begin, and where the last one's end. A
        request without rows is left as it was.
    votes : Tensor
        `[R', 2, H, D]` with R' at least R, written.
    k_pool, v_pool : Tensor
        `[R', C, Hkv, D]`, of any strides, written for requests of up to C + 1 rows.
    """
    requests, capacity = len(starts) - 1, k_pool.shape[1]
    begin, end = starts[:-1].long(), starts[1:].long()
    some = (end > begin).nonzero().squeeze(1)
    votes[some, 0] = query[begin[some]]
    votes[some, 1] = query[end[some] - 1]
    drafts = torch.arange(capacity, device=starts.device) + 1
    kept = (drafts < (end - begin)[:, None]) & (end - begin <= capacity + 1)[:, None]
    rows = torch.arange(requests, device=starts.device)[:, None].expand_as(kept)
    source = (begin[:, None] + drafts)[kept]
    at = rows[kept], (drafts - 1).expand_as(kept)[kept]
    k_pool[at], v_pool[at] = key[source], value[source]
