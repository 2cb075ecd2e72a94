"""Bounds of the keys of each page, and what a query can find in a page at most, in plain torch."""

import torch
from torch import Tensor


def update_bounds(
    k_cache: Tensor,
    block_table: Tensor,
    pages: Tensor,
    kv_lens: Tensor,
    page_min: Tensor,
    page_max: Tensor,
) -> None:
    """Write the least and the largest key of some pages, channel by channel.

    Parameters
    ----------
    k_cache : Tensor
        `[layers, pages, page_size, Hkv, D]`.
    block_table : Tensor
        int64 `[R, P]`, the pages of each request in order.
    pages : Tensor
        int64 `[R, n]`, places in the table; those that hold no entry are skipped.
    kv_lens : Tensor
        int64 `[R]`, entries of each request; what stands past them in a page has no say.
    page_min, page_max : Tensor
        `[layers, pages, Hkv, D]`, written at the requests' pages; page 0 takes what is skipped.
    """
    size = k_cache.shape[2]
    held = pages * size < kv_lens[:, None]
    place = pages.clamp(max=block_table.shape[1] - 1)
    physical = torch.where(held, block_table.gather(1, place), 0)
    entry = pages[..., None] * size + torch.arange(size, device=pages.device)
    absent = (entry >= kv_lens[:, None, None])[..., None, None]
    # [layers, R, n, page_size, Hkv, D]
    keys = k_cache[:, physical]
    page_min[:, physical] = keys.masked_fill(absent, torch.inf).amin(3)
    page_max[:, physical] = keys.masked_fill_(absent, -torch.inf).amax(3)


def page_scores(q: Tensor, page_min: Tensor, page_max: Tensor, block_table: Tensor) -> Tensor:
    """The largest product of a query with any key within a page's bounds, averaged over the group.

    ``sum_c max(q_c min_c, q_c max_c)``: the maximum is at `page_max` where q_c is positive and at
    `page_min` where it is not, so that the mean over heads needs two summed queries a KV head.

    Parameters
    ----------
    q : Tensor
        `[R, 1, H, D]`.
    page_min, page_max : Tensor
        `[pages, Hkv, D]`.
    block_table : Tensor
        int64 `[R, P]`.

    Returns
    -------
    Tensor
        float32 (float64 for float64 queries) `[R, Hkv, P]`, without the attention's scale; for a
        place that holds no page of the request, anything.
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    query = q[:, 0].to(compute).unflatten(1, (page_min.shape[1], -1))
    high, low = query.clamp(min=0).mean(2), query.clamp(max=0).mean(2)
    scores = torch.einsum("rhd,rphd->rhp", high, page_max[block_table].to(compute))
    return scores + torch.einsum("rhd,rphd->rhp", low, page_min[block_table].to(compute))
