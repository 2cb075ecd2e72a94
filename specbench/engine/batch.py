"""The rows that decode together: device tensors of fixed shape, rows without a request masked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE, pages_for


@dataclass(frozen=True)
class Committed:
    """What one iteration added.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, gamma + 1]`, the first `count` of a row are new.
    count : Tensor
        int64 `[R]`; 0 for a row without a request.
    accepted : Tensor
        int64 `[R]`, drafts among the committed tokens.
    ended : Tensor
        bool `[R]`, rows whose request is complete.
    """

    tokens: Tensor
    count: Tensor
    accepted: Tensor
    ended: Tensor


def slots_of(block_table: Tensor, positions: Tensor, page_size: int = PAGE_SIZE) -> Tensor:
    """Cache slots `[R, Q]` of positions `[R, Q]`; past the table's end, those of its last page."""
    page = (positions // page_size).clamp(0, block_table.shape[1] - 1)
    return block_table.gather(1, page).long() * page_size + positions % page_size


def slots_of_sets(block_table: Tensor, positions: Tensor, page_size: int = PAGE_SIZE) -> Tensor:
    """Cache slots of positions `[layers, R, S, K]`, of the same shape; -1 stays -1."""
    layers, rows, sets, width = positions.shape
    flat = positions.permute(1, 0, 2, 3).reshape(rows, -1)
    slots = torch.where(flat >= 0, slots_of(block_table, flat.clamp(min=0), page_size), -1)
    return slots.view(rows, layers, sets, width).permute(1, 0, 2, 3)


class Batch:
    """State of the running requests.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R]`, the last committed token; its KV is not in the cache yet.
    lengths : Tensor
        int64 `[R]`, committed tokens whose KV is in the cache, which is `tokens`' position.
    remaining : Tensor
        int64 `[R]`, tokens that the request may still commit.
    active : Tensor
        bool `[R]`, whether the row has an unfinished request.
    request : Tensor
        int64 `[R]`, what keys the request's random numbers.
    block_table : Tensor
        int32 `[R, P]`, pages in order; 0 past the request's reservation.
    history : Tensor
        int64 `[R, max_len + 1]`, the request's tokens by position, up to `tokens` at `lengths`;
        what stands behind is old, and the last column takes the masked writes.
    deepest : Tensor
        int64 `[R]`, row of the last verification that was the last accepted draft's; 0 where none
        was accepted.
    eos : Tensor
        int64 `[E]`, tokens that end a request.
    """

    def __init__(
        self,
        rows: int,
        max_len: int,
        eos: list[int],
        device: torch.device | str,
        spare: int = 0,
    ) -> None:
        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.rows = rows
        self.tokens = integers(rows)
        self.lengths = integers(rows)
        self.remaining = integers(rows)
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        self.request = integers(rows)
        pages = pages_for(max_len + spare)
        self.block_table = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self.history = integers(rows, max_len + 1)
        self.deepest = integers(rows)
        self.eos = torch.tensor(eos, dtype=torch.int64, device=device)

    def reserve(self, row: int, pages: list[int]) -> None:
        """Give `row` its pages."""
        self.block_table[row] = 0
        table = torch.tensor(pages, dtype=torch.int32, device=self.tokens.device)
        self.block_table[row, : len(pages)] = table

    def record(self, row: int, token_ids: list[int]) -> None:
        """Note the prompt of `row`."""
        prompt = torch.tensor(token_ids, device=self.tokens.device)
        self.history[row, : len(token_ids)] = prompt

    def admit(self, row: int, request: int, length: int, token: int, remaining: int) -> None:
        """Start decoding a prefilled request of `length` tokens whose first new one is `token`."""
        self.request[row].fill_(request)
        self.lengths[row].fill_(length)
        self.tokens[row].fill_(token)
        self.history[row, length].fill_(token)
        self.remaining[row].fill_(remaining)
        self.active[row].fill_(True)

    def release(self, row: int) -> None:
        """Empty a row, without waiting for the device: the assignment of a number would."""
        self.active[row].fill_(False)
        self.lengths[row].fill_(0)
        self.remaining[row].fill_(0)
        self.block_table[row].fill_(0)

    def allowed(self, gamma: int) -> Tensor:
        """Drafts `[R]` that each row can use; the last shrink to what may still be committed."""
        return (self.remaining - 1).clamp(0, gamma) * self.active

    def slots(self, positions: Tensor, valid: Tensor) -> Tensor:
        """Cache slots `[R, Q]` of positions `[R, Q]`, -1 where not `valid`."""
        return torch.where(valid, slots_of(self.block_table, positions), -1)

    def commit(self, drafts: Tensor | None, accepted: Tensor, following: Tensor) -> Committed:
        """Append accepted drafts and the token after them; the one place that decides EOS.

        Parameters
        ----------
        drafts : Tensor or None
            int64 `[R, gamma]`.
        accepted, following : Tensor
            int64 `[R]` from `accept_chain`; `accepted` never exceeds `allowed`.

        Returns
        -------
        Committed
            Nothing follows an EOS, also where it is an accepted draft.
        """
        tokens = following[:, None]
        if drafts is not None:
            padded = torch.cat([drafts, tokens], dim=1)
            position = torch.arange(padded.shape[1], device=padded.device)
            tokens = torch.where(position < accepted[:, None], padded, tokens)
        ends = torch.isin(tokens, self.eos)
        before = ends.long().cumsum(1) - ends.long()
        position = torch.arange(tokens.shape[1], device=tokens.device)
        kept = (before == 0) & (position <= accepted[:, None]) & self.active[:, None]
        count = kept.sum(1)
        places = torch.where(kept, self.lengths[:, None] + 1 + position, self.history.shape[1] - 1)
        self.history.scatter_(1, places, tokens)
        self.remaining -= count
        ended = self.active & ((ends & kept).any(1) | (self.remaining == 0))
        last = tokens.gather(1, (count - 1).clamp(min=0)[:, None]).squeeze(1)
        self.tokens.copy_(torch.where(count > 0, last, self.tokens))
        self.lengths += count
        self.active &= ~ended
        return Committed(tokens, count, torch.minimum(accepted, count), ended)
