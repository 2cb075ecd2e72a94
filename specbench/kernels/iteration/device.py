"""What the kernels of an iteration's bookkeeping share on the device."""

import triton
import triton.language as tl


@triton.jit
def allowed_drafts(remaining, active, row, gamma):
    """How many drafts of `row` a verification takes, as `Batch.allowed`; 0 for an empty row."""
    running = tl.load(active + row).to(tl.int64)
    return tl.minimum(tl.maximum(tl.load(remaining + row) - 1, 0), gamma) * running
