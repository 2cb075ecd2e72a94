"""Where the tokens of a chain of drafts stand, and what each of its steps reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.batch import Batch, slots_of


@dataclass(frozen=True)
class DraftSteps:
    """Of all steps at once: step i feeds the token at position ``lengths + i``.

    Attributes
    ----------
    fed : Tensor
        int64 `[gamma, R, 1]`, that position, within the model's tables.
    own : Tensor
        int64 `[gamma, R, 1]`, its cache slot; -1 for a row that does not draft any more.
    tails : Tensor
        int64 `[gamma, R, T]`, the slots behind the selected entries that a step reads, -1 for none.
    """

    fed: Tensor
    own: Tensor
    tails: Tensor


def draft_steps(batch: Batch, gamma: int, reach: Tensor, max_len: int) -> DraftSteps:
    """Steps of `gamma` drafts of which each reads the positions `reach` `[R, T]` up to its own.

    Parameters
    ----------
    batch : Batch
    gamma : int
        At least 1.
    reach : Tensor
        int64 `[R, T]`.
    max_len : int
        Positions of the model's tables.
    """
    steps, position = torch.arange(gamma, device=reach.device), batch.lengths[:, None]
    drafting = steps < batch.allowed(gamma)[:, None]
    own = batch.slots(position + steps, drafting).T.contiguous()[..., None]
    read = (reach <= position + steps[:, None, None]) & drafting.T[..., None]
    tails = torch.where(read, slots_of(batch.block_table, reach), -1)
    fed = (position + steps).clamp(0, max_len - 1).T.contiguous()[..., None]
    return DraftSteps(fed, own, tails)
