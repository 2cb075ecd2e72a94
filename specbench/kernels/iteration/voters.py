"""What normalises the votes of a verification, in Triton."""

import triton
import triton.language as tl
from torch import Tensor

from specbench.config import Queries
from specbench.engine.batch import Batch
from specbench.kernels.iteration.device import allowed_drafts
from specbench.kernels.launch import dependent, release_next, wait_for_previous
from specbench.kernels.paged_attention.collecting import WHICH
from specbench.kernels.paged_attention.triton_rows import FIRST_LAST, LAST


def sums_of_voters(batch: Batch, queries: Queries, lse: Tensor, out: Tensor) -> None:
    """As `engine.draft_steps.sums_of_voters`; `lse` and `out` are dense float32."""
    layers, rows, voters, heads = out.shape
    if not (lse.is_contiguous() and out.is_contiguous()):
        raise ValueError("log-sum-exps and sums must be dense")
    _sums_of_voters[(rows, layers)](
        batch.remaining,
        batch.active,
        lse,
        out,
        QUERIES=WHICH[queries],
        GAMMA=lse.shape[2],
        VOTERS=voters,
        HEADS=heads,
        PADDED=triton.next_power_of_2(voters * heads),
        num_warps=1,
        **dependent(True, out.device),
    )


@triton.jit
def _sums_of_voters(
    remaining,
    active,
    lse,
    out,
    QUERIES: tl.constexpr,
    GAMMA: tl.constexpr,
    VOTERS: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + row
    release_next(PDL)
    wait_for_previous(PDL)
    last = tl.maximum(allowed_drafts(remaining, active, row, GAMMA) - 1, 0)
    cell = tl.arange(0, PADDED)
    voter, head = cell // HEADS, cell % HEADS
    step = tl.minimum(voter, last)
    if QUERIES == FIRST_LAST:
        step = tl.where(voter == 0, 0, last)
    if QUERIES == LAST:
        step = voter * 0 + last
    inside = cell < VOTERS * HEADS
    value = tl.load(lse + (at * GAMMA + step) * HEADS + head, mask=inside, other=0.0)
    # a row that did not draft had nothing to read
    value = tl.where((value == value) & (value > -float("inf")), value, 0.0)
    value = tl.minimum(value, 3.4028234663852886e38)
    tl.store(out + at * VOTERS * HEADS + cell, value, mask=inside)
