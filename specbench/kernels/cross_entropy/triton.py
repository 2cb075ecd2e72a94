"""Cross-entropy of logits, and its gradient in their place, one launch, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.cross_entropy.reference import IGNORED
from specbench.kernels.launch import check_dtype

_IGNORED = tl.constexpr(IGNORED)


@dataclass(frozen=True)
class LossLaunch:
    """How one program goes through its row.

    Attributes
    ----------
    block : int
        Logits at a time, a power of two.
    num_warps : int
    """

    block: int = 4096
    num_warps: int = 8


def cross_entropy(
    logits: Tensor, labels: Tensor, gradient: bool, launch: LossLaunch | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.cross_entropy`; rows may be strided."""
    rows, vocab = logits.shape
    check_dtype(logits)
    if logits.stride(1) != 1 or not labels.is_contiguous():
        raise ValueError("the labels, and the elements of a row of logits, must be adjacent")
    launch = launch or LossLaunch()
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    hit = torch.empty(rows, dtype=torch.bool, device=logits.device)
    if rows:
        _cross_entropy[(rows,)](
            logits,
            logits.stride(0),
            labels,
            loss,
            hit,
            V=vocab,
            BLOCK=min(launch.block, triton.next_power_of_2(vocab)),
            GRADIENT=gradient,
            num_warps=launch.num_warps,
        )
    return loss, hit


@triton.jit
def _cross_entropy(
    logits,
    stride,
    labels,
    loss,
    hit,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """One row, read once for its sum and once more for its gradient."""
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * stride
    column = tl.arange(0, BLOCK)
    label = tl.load(labels + row)
    counted = label != _IGNORED
    # each of a block's places sums its own column, so that threads meet once a row
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, V, BLOCK):
        inside = first + column < V
        x = tl.load(at + first + column, mask=inside, other=-float("inf")).to(tl.float32)
        higher = x > top
        place = tl.where(higher, first + column, place)
        peak = tl.where(higher, x, top)
        # exp(-inf - -inf) is NaN; what is NaN itself stays so
        fade = tl.where(top == peak, 1.0, tl.exp(top - peak))
        total = total * fade + tl.where(x == -float("inf"), 0.0, tl.exp(x - peak))
        top = peak
    highest = tl.max(top, 0)
    first_of = tl.min(tl.where(top == highest, place, V), 0)
    scaled = tl.where(top == -float("inf"), 0.0, tl.exp(top - highest))
    # a place that saw nothing, or NaN alone, has its sum unscaled
    sums = tl.sum(tl.where(top == -float("inf"), total, total * scaled), 0)
    known = tl.load(at + tl.where(counted, label, 0)).to(tl.float32)
    log_sum = highest + tl.log(sums)
    tl.store(loss + row, tl.where(counted, log_sum - known, 0.0))
    tl.store(hit + row, counted & (first_of == label))
    if GRADIENT:
        for first in tl.range(0, V, BLOCK):
            inside = first + column < V
            x = tl.load(at + first + column, mask=inside, other=0.0).to(tl.float32)
            share = tl.exp(x - log_sum) - tl.where(first + column == label, 1.0, 0.0)
            share = tl.where(counted, share, 0.0)
            tl.store(at + first + column, share.to(logits.dtype.element_ty), mask=inside)
