"""Rounds of drafting as CUDA graphs, one a bucket of rows."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.graph import capture
from specbench.integrations.vllm.drafter import Drafter

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE, CUDAGraph

    from specbench.integrations.vllm.parallel import Ranks


def buckets_of(most: int) -> list[int]:
    """Rows that graphs are made for: powers of two, and from 16 on the steps between them."""
    sizes = [1, 2, 4, 8, *range(16, 64, 16), *range(64, 257, 32), *range(320, most + 64, 64)]
    return [*(size for size in sizes if size < most), most]


class Replay:
    """Runs a drafter's rounds, captured where the device can.

    A bucket's graph is made in the first round that needs it; it reads and writes what the drafter
    holds, so that replays need nothing but the drafter's inputs. Where vLLM binds another KV cache,
    graphs are made anew.

    Parameters
    ----------
    drafter : Drafter
    graphs : bool
    ranks : Ranks, optional
        Of a tensor-parallel group.
    """

    def __init__(self, drafter: Drafter, graphs: bool, ranks: "Ranks | None" = None) -> None:
        self.drafter, self.ranks = drafter, ranks
        device = drafter.planned.device
        self.graphs = graphs and device.type == "cuda" and drafter.compute.capturable
        self.buckets = buckets_of(len(drafter.planned))
        self._made: dict[int, CUDAGraph] = {}
        self._pool: _POOL_HANDLE | None = None

    def forget(self) -> None:
        """Give up all graphs: what they read has moved."""
        self._made.clear()

    def run(self, rows: int) -> Tensor:
        """Drafts `[rows, gamma]` of what is planned."""
        bucket = next(size for size in self.buckets if size >= rows)
        drafter = self.drafter
        # rows of an earlier, larger batch get no drafts
        drafter.planned[rows:bucket] = 0
        if not self.graphs:
            return drafter.run(bucket)[:rows]
        if bucket not in self._made:
            self._made[bucket] = self._capture(bucket)
        self._made[bucket].replay()
        return drafter.drafts[:rows]

    def _capture(self, bucket: int) -> "CUDAGraph":
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        within = self.ranks.capture(self.drafter.planned.device) if self.ranks else nullcontext()
        with within:
            graph, _ = capture(lambda: self.drafter.run(bucket), self._pool)
        return graph
