"""Scores and choice on the GPU: the engine's kernels over vLLM's cache."""

import torch
from torch import Tensor

from specbench.engine.model_config import ModelConfig
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.paged_attention.triton import PagedAttention
from specbench.kernels.selection.triton import select
from specbench.kernels.selection.workspace import SelectionWorkspace

_VOTES = 2


class ScoringKernels:
    """The memory that the calls of all layers share.

    Parameters
    ----------
    scores : Tensor
        float32 `[G, R, S, L]`, the scores of a group of layers.
    collect : Collect
    shape : ModelConfig
    width : int
        Most entries that are kept.
    dtype : torch.dtype
        Of queries and keys.
    """

    def __init__(
        self,
        scores: Tensor,
        collect: Collect,
        shape: ModelConfig,
        width: int,
        dtype: torch.dtype,
    ) -> None:
        _, rows, sets, length = scores.shape
        heads = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self._paged = PagedAttention(rows, _VOTES, *heads, length, dtype, scores.device, collect)
        lists = len(scores) * rows * sets
        self._selection = SelectionWorkspace(
            lists, length, width, scores.device, dtype=scores.dtype
        )

    def score(
        self,
        votes: Tensor,
        keys: Tensor,
        table: Tensor,
        seen: Tensor,
        voters: Tensor,
        scale: float,
        mask: Tensor,
        ranked: Tensor,
        scores: Tensor,
    ) -> None:
        """Write the scores `[R, S, L]` of one layer; see `vegas_choice.VegasChoice`."""
        self._paged(
            votes,
            keys,
            None,
            table,
            seen,
            voters,
            scale,
            out=torch.empty_like(votes),
            tree_mask=mask,
            ranked=ranked,
            scores=scores,
        )

    def select(
        self,
        scores: Tensor,
        ranked: Tensor,
        keep: Tensor,
        sinks: int,
        window: int,
        table: Tensor,
        block: int,
        out: Tensor,
    ) -> None:
        """Write the slots `[G, R, S, K]` of the best entries of a group of layers."""
        select(
            scores,
            ranked,
            keep,
            out.shape[-1],
            sinks,
            window,
            block_table=table,
            page_size=block,
            workspace=self._selection,
            out=out,
        )
