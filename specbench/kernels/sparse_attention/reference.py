"""Attention of one query a request over a list of selected entries and a tail, in plain torch."""

import torch
from torch import Tensor


def sparse_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    selected: Tensor,
    tail: Tensor,
    scale: float,
    unit: int = 1,
    tail_caches: tuple[Tensor, Tensor] | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attention over the union of two lists of slots.

    Parameters
    ----------
    q : Tensor
        `[R, 1, H, D]`.
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]`.
    selected : Tensor
        int64 `[R, S, K]` slots, or runs of `unit` slots; -1 for none. S is Hkv, or 1 where all
        heads share a list.
    tail : Tensor
        int64 `[R, T]` slots that every head reads, -1 for none. No slot may stand in both lists.
    scale : float
        Multiplies the logits before the softmax.
    unit : int
        Slots of a run: i stands for those from ``i * unit`` on. With the page size, runs are pages.
    tail_caches : pair of Tensor, optional
        Keys and values `[pages, page_size, Hkv, D]` that the tail's slots are of, with a page size
        of their own; by default the tail is in the same caches.
    lse : Tensor, optional
        `[R, H]`, written: natural log-sum-exp of the scaled logits; -inf where the lists are empty.

    Returns
    -------
    Tensor
        `[R, 1, H, D]`; zeros for a request whose lists are empty.
    """
    requests, _, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    if unit > 1:
        runs = selected[..., None] * unit + torch.arange(unit, device=q.device)
        selected = torch.where(selected[..., None] >= 0, runs, -1).flatten(-2)
    lists = selected.expand(-1, kv_heads, -1), tail[:, None, :].expand(-1, kv_heads, -1)
    present = torch.cat(lists, dim=-1) >= 0
    caches = (k_cache, v_cache), tail_caches or (k_cache, v_cache)
    read = [_read(pool, slots) for pool, slots in zip(caches, lists, strict=True)]
    # [R, Hkv, K + T, D]
    keys, values = (torch.cat(parts, 2).to(compute) for parts in zip(*read, strict=True))
    # an absent entry reads memory that nothing may have written: a zero weight times NaN is NaN
    values = values.masked_fill(~present.unsqueeze(-1), 0)
    query = q.view(requests, kv_heads, heads // kv_heads, dim).to(compute)
    logits = torch.matmul(query, keys.transpose(-1, -2)) * scale
    logits = logits.masked_fill(~present.unsqueeze(2), -torch.inf)
    if lse is not None:
        lse.copy_(logits.logsumexp(-1).flatten(1))
    weights = torch.softmax(logits, dim=-1)
    # a row without entries has no softmax
    weights = weights.masked_fill(~present.any(-1)[:, :, None, None], 0)
    return torch.matmul(weights, values).reshape(requests, 1, heads, dim).to(q.dtype)


def _read(caches: tuple[Tensor, Tensor], slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values `[R, Hkv, n, D]` at slots `[R, Hkv, n]`; of some slot where there is none."""
    page_size, kv_heads = caches[0].shape[1:3]
    head = torch.arange(kv_heads, device=slots.device)[None, :, None]
    page, offset = slots.clamp(min=0) // page_size, slots.clamp(min=0) % page_size
    return caches[0][page, offset, head], caches[1][page, offset, head]
