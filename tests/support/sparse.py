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
