"""Tokens that no logits can tell apart: equal rows of an LM head."""

import torch
from torch import Tensor

_BLOCK = 4096
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def first_of_equal_rows(weight: Tensor) -> Tensor | None:
    """For each row the first one that equals it.

    A product on the CPU sums a row in an order that depends on its place and on how many rows are
    multiplied together, so that equal rows get logits which differ in the last bits, and the best
    of them is another one in a verification than in a decode step. Padded vocabularies have such
    rows. Read at the first of them, logits tie where they must.

    Parameters
    ----------
    weight : Tensor
        `[V, H]`.

    Returns
    -------
    Tensor or None
        int64 `[V]`; None where no two rows are equal.
    """
    count, width = weight.shape
    # exact in any order, as floating-point sums are not
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (width,), generator=generator).to(weight.device) * 2 + 1
    digest = torch.cat(
        [
            # the sum turns a negative zero into a positive one, which it equals
            ((block + 0).view(_BITS[weight.dtype.itemsize]).long() * factors).sum(-1)
            for block in weight.detach().split(_BLOCK)
        ]
    )
    kinds, kind = digest.unique(return_inverse=True)
    index = torch.arange(count, device=weight.device)
    first = torch.full_like(kinds, count).scatter_reduce_(0, kind, index, "amin")[kind]
    doubles = (first < index).nonzero()[:, 0]
    same = (weight[doubles] == weight[first[doubles]]).all(-1)
    first[doubles] = torch.where(same, first[doubles], doubles)
    return first if bool(same.any()) else None
