"""The residual stream between fused products, and the memory that these share."""

import torch
from torch import Tensor

from specbench.kernels.head.triton import SCRATCH_TILES
from specbench.kernels.launch import Scratch, multiprocessors
from specbench.kernels.linear.plan import choose, scratch_size
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.norm.triton import add_rms_norm, prenorm, rms_norm
from specbench.kernels.qkv.project import by_heads


def make_scratch(
    hidden: int,
    dim: int,
    heads: tuple[int, ...],
    inner: tuple[int, ...],
    device: torch.device | str,
) -> Scratch:
    """What products of up to 64 rows share: to `heads`, and of `inner` columns to the stream."""
    sms = multiprocessors(device)
    needs = [(0, SCRATCH_TILES)]
    for rows in (16, 32, 64):
        for count in heads:
            # tiles of halves need none
            qkv = by_heads(rows, count, dim, hidden, sms)
            needs.append(scratch_size(rows, count * qkv.block_n, hidden, qkv, alone=True))
        for columns in inner:
            launch = choose(rows, hidden, columns, sms)
            needs.append(scratch_size(rows, hidden, columns, launch))
    floats, tiles = (max(sizes) for sizes in zip(*needs, strict=True))
    return Scratch.make(device, floats, tiles)


class Stream:
    """The residual stream, what is still to be added to it, and the norm that was begun on it."""

    def __init__(self, x: Tensor, ready: Prenormed | None = None) -> None:
        self.x = x
        self.delta: Tensor | None = None
        self.ready = ready

    def add(self, delta: Tensor) -> None:
        """Add with the next norm, in one launch."""
        self.x = self.settled()
        self.delta = delta

    def settled(self) -> Tensor:
        """The stream with everything added; a norm begun before is out of date then."""
        if self.delta is not None:
            self.x += self.delta
        self.delta = self.ready = None
        return self.x

    def normed(self, weight: Tensor, eps: float) -> Tensor:
        """The RMS norm."""
        delta, self.delta = self.delta, None
        if delta is None:
            return rms_norm(self.x, weight, eps)
        return add_rms_norm(self.x, delta, weight, eps)

    def prenormed(self, weight: Tensor) -> Prenormed:
        """The same, for a product that completes it."""
        ready, self.ready = self.ready, None
        if ready is not None:
            return ready
        delta, self.delta = self.delta, None
        return prenorm(self.x, weight, delta)
