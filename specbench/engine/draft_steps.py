"""Where the tokens of a chain of drafts stand, and what each of its steps reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config import Queries
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


def sums_of_voters(batch: Batch, queries: Queries, lse: Tensor, out: Tensor) -> None:
    """Give each verify row that votes the log-sum-exp of its token's draft step.

    The last row's token was not fed to a draft step: the one before it stands in.

    Parameters
    ----------
    batch : Batch
    queries : {"first+last", "last", "all"}
        Which rows of a verification vote.
    lse : Tensor
        `[layers, R, gamma, H]`, of each step; -inf of a row that did not draft.
    out : Tensor
        `[layers, R, voters, H]`; 0 for a row that did not draft, which had nothing to read.
    """
    last = (batch.allowed(lse.shape[2]) - 1).clamp(min=0)[:, None]
    row = torch.arange(out.shape[2], device=lse.device)
    if queries == "first+last":
        row = row * last
    elif queries == "last":
        row = row + last
    step = torch.minimum(row, last)[None, :, :, None].expand_as(out)
    out.copy_(lse.gather(2, step).nan_to_num(neginf=0.0))
