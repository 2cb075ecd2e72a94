"""Random numbers that depend on what they decide, not on when or beside what it is decided.

Philox4x32-10 (Salmon et al., SC'11) as a pure function of (seed, request, start, offset, purpose).
`start` is the request's length when the iteration began and `offset` the position counted from
there. The pair, rather than the position alone, keeps every draw fresh: a position that is drafted
again in the next iteration must not see the number that a discarded draft saw, because methods
choose their KV by looking at discarded drafts.
"""

from enum import IntEnum
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)


class Purpose(IntEnum):
    """Separate streams for the separate decisions at one position."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2
    SELECT = 3


def uniform(
    seed: int, request: Tensor, start: Tensor, offset: Tensor | int, purpose: Purpose
) -> Tensor:
    """Numbers in [0, 1) with 53 random bits.

    Parameters
    ----------
    seed : int
        64 bits.
    request, start, offset : Tensor
        Integers that broadcast against each other, each below 2^32.
    purpose : Purpose
        The stream.

    Returns
    -------
    Tensor
        float64, of the broadcast shape.
    """
    if request.is_cuda and _fused():
        from specbench.kernels.head.uniform import uniform as fused

        return fused(seed, request, start, offset, purpose)
    if isinstance(offset, int):
        # filled on the device: a copy from the host could not be captured
        offset = torch.full((), offset, dtype=torch.int64, device=request.device)
    c0, c1, c2 = torch.broadcast_tensors(start.long(), offset, request.long())
    high, low = philox((c0, c1, c2, torch.full_like(c0, purpose)), seed)[:2]
    return ((high >> 5).double() * 2.0**26 + (low >> 6).double()) * 2.0**-53


@cache
def _fused() -> bool:
    """Whether the kernel can be had that gives the same bits in one launch."""
    return find_spec("triton") is not None


def philox(counter: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    """Philox4x32-10: four int64 tensors that hold 32 random bits each."""
    c0, c1, c2, c3 = (c & _MASK for c in counter)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _multiply(c0, _ROUND[0])
        high1, low1 = _multiply(c2, _ROUND[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY[0]) & _MASK, (k1 + _KEY[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    # int64 wraps around, which leaves the 64 product bits as they are
    product = a * b
    return (product >> 32) & _MASK, product & _MASK
