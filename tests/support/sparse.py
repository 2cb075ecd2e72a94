"""Lists of slots for sparse attention."""

import torch
from torch import Tensor

from tests.support.paged import Paged


def choose(
    kv: Paged, sets: int, width: int, tail_width: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Random lists with -1 anywhere in them, and what they let each set see, `[sets, n]`."""
    generator = torch.Generator().manual_seed(11)
    requests = len(kv.keys)
    selected = torch.full((requests, sets, width), -1)
    tail = torch.full((requests, tail_width), -1)
    seen = []
    for row, keys in enumerate(kv.keys):
        length = len(keys)
        ranked = min(length, max(0, length - tail_width + row))
        last = torch.arange(ranked, length)
        tail[row, torch.randperm(tail_width, generator=generator)[: len(last)]] = kv.slots(
            row, last
        )
        mask = torch.zeros(sets, length, dtype=torch.bool)
        mask[:, last] = True
        for s in range(sets):
            count = min(ranked, max(0, width - s - 1))
            positions = torch.randperm(ranked, generator=generator)[:count]
            at = torch.randperm(width, generator=generator)[:count]
            selected[row, s, at] = kv.slots(row, positions)
            mask[s, positions] = True
        seen.append(mask)
    return selected, tail, seen


def tail_pool(kv: Paged, tail: Tensor, page_size: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Keys and values of the tail's entries in pages of their own, and their slots there.

    Page 0 is nobody's, and nothing but the entries is a number.
    """
    requests, width = tail.shape
    pages = -(-width // page_size)
    at = torch.arange(width) + torch.arange(requests)[:, None] * pages * page_size + page_size
    own = torch.where(tail >= 0, at, -1)
    pool = []
    for cache in (kv.k_cache, kv.v_cache):
        shape = 1 + requests * pages, page_size, *cache.shape[2:]
        filled = torch.full(shape, torch.nan, dtype=cache.dtype, device=cache.device)
        filled.flatten(0, 1)[own[own >= 0]] = cache.flatten(0, 1)[tail[tail >= 0]]
        pool.append(filled)
    return (pool[0], pool[1]), own
