"""What the phases of a step hand to one another."""

import torch

from specbench.kernels.step.plan import Shape, StepPlan


class StepWorkspace:
    """Memory of the launches of one number of rows that follow one another on a stream.

    It is made for the first launch, and anew for one that needs more.

    Parameters
    ----------
    dtype, device
        Of the stream.

    Attributes
    ----------
    stream, rows, mlp_rows : Tensor
        `[n, hidden]`: the residual stream, and it times the norm in front of attention and MLP.
    squares, mlp_squares : Tensor
        float32 `[tiles, row tile]`, sums of squares of the stream.
    q, attended, gated : Tensor
        `[n, H, D]`, `[n, H, D]`, `[n, inner]`.
    partial, sums, arrivals
        Of the attention's splits; see `SparseAttentionWorkspace`.
    parts, counters
        Of the products' splits; see `Scratch`.
    barrier : Tensor
        int32 `[1]`, arrivals of a launch; zero between launches.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype, self.device = dtype, device
        self._fits: tuple[StepPlan, Shape, int] | None = None

    def fit(self, cut: StepPlan, shape: Shape, rows: int) -> None:
        """Make what a launch needs, unless the last one had the same cut."""
        if self._fits == (cut, shape, rows):
            return
        self._fits = cut, shape, rows
        width = shape.heads * shape.dim

        def empty(*size: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=self.device)

        def counts(number: int) -> torch.Tensor:
            return torch.zeros(number, dtype=torch.int32, device=self.device)

        self.stream = empty(rows, shape.hidden)
        self.rows, self.mlp_rows = torch.empty_like(self.stream), torch.empty_like(self.stream)
        self.squares = empty(cut.down.tiles, cut.rows, dtype=torch.float32)
        self.mlp_squares = empty(cut.o.tiles, cut.rows, dtype=torch.float32)
        self.q, self.attended = empty(rows, width), empty(rows, width)
        self.gated = empty(rows, shape.inner)
        lists = rows * shape.kv_heads * cut.splits if cut.splits > 1 else 0
        group = shape.heads // shape.kv_heads
        self.partial = empty(lists * group * shape.dim, dtype=torch.float32)
        self.sums = empty(lists * group * 2, dtype=torch.float32)
        self.arrivals = counts(rows * shape.kv_heads)
        self.parts = empty(cut.floats, dtype=torch.float32)
        self.counters, self.barrier = counts(max(1, cut.counters)), counts(1)
