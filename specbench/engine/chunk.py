"""What a verification of chains reads, and what it leaves: the bookkeeping around its forward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.acceptance import accept_chain, accept_greedy
from specbench.engine.batch import Batch, Committed
from specbench.engine.sampling import Sampling, invalid
from specbench.methods.base import Draft


@dataclass(frozen=True)
class Chunk:
    """The last committed token and the drafts of each row, for one forward.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, Q]`.
    positions : Tensor
        int64 `[R, Q]`, within the tables also where masked.
    slots : Tensor
        int64 `[R, Q]`, -1 past a row's drafts and where there is no request.
    kv_lens, q_lens : Tensor
        int64 `[R]`, entries with those of the chunk, and its rows; 0 without a request.
    allowed : Tensor
        int64 `[R]`, drafts that count.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    kv_lens: Tensor
    q_lens: Tensor
    allowed: Tensor

    @property
    def drafts(self) -> Tensor | None:
        """`[R, Q - 1]`; None where there are none."""
        return self.tokens[:, 1:] if self.tokens.shape[1] > 1 else None


def make_chunk(batch: Batch, draft: Draft | None, gamma: int, max_len: int) -> Chunk:
    """The chunk of `draft`, of at most `gamma` tokens a row, at positions below `max_len`."""
    allowed = batch.allowed(gamma)
    tokens = batch.tokens[:, None]
    if draft is not None:
        tokens = torch.cat([tokens, draft.tokens], dim=1)
        if draft.counts is not None:
            allowed = torch.minimum(allowed, draft.counts)
    offset = torch.arange(tokens.shape[1], device=tokens.device)
    positions = batch.lengths[:, None] + offset
    q_lens = (allowed + 1) * batch.active
    return Chunk(
        tokens,
        # masked rows may point past the tables; what they compute is never read
        positions.clamp(0, max_len - 1),
        batch.slots(positions, offset < q_lens[:, None]),
        (batch.lengths + q_lens) * batch.active,
        q_lens,
        allowed,
    )


def finish_greedy(batch: Batch, chunk: Chunk, best: Tensor, bad: Tensor) -> Tensor:
    """Accept and commit at temperature 0; the iteration's result as `pack` has it.

    Parameters
    ----------
    batch : Batch
    chunk : Chunk
    best, bad : Tensor
        int64 and bool `[R, Q]`: the arg-max after each token, and where there is none.
    """
    draft = None if chunk.drafts is None else Draft(chunk.drafts)
    accepted, following = accept_greedy(best, draft, chunk.allowed)
    return finish(batch, chunk, accepted, following, bad)


def finish_sampled(
    batch: Batch, chunk: Chunk, draft: Draft | None, logits: Tensor, sampling: Sampling
) -> Tensor:
    """The same above temperature 0, of the logits `[R, Q, V]` after each token."""
    keys = batch.request, batch.lengths
    accepted, following = accept_chain(logits, draft, chunk.allowed, sampling, *keys)
    return finish(batch, chunk, accepted, following, invalid(logits))


def finish(batch: Batch, chunk: Chunk, accepted: Tensor, following: Tensor, bad: Tensor) -> Tensor:
    """Commit what was accepted, `[R]` each; `bad` `[R, Q]` counts in the chunk's rows only."""
    batch.deepest.copy_(accepted)
    committed = batch.commit(chunk.drafts, accepted, following)
    offset = torch.arange(bad.shape[1], device=bad.device)
    return pack(committed, chunk.allowed, (bad & (offset < chunk.q_lens[:, None])).any(1))


def pack(committed: Committed, drafted: Tensor, bad: Tensor) -> Tensor:
    """An iteration's result as one tensor, int64 `[R, 5 + tokens]`."""
    columns = [committed.count, committed.accepted, drafted, committed.ended, bad]
    return torch.cat([torch.stack([c.long() for c in columns], 1), committed.tokens], 1)
