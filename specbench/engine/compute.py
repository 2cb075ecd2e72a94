"""How the engine's forwards are computed: what a compute does, and which one is made."""

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Self

import torch
from torch import Tensor

from specbench.config import AttentionBackend, Queries
from specbench.engine.batch import Batch
from specbench.engine.chunk import Chunk, finish_greedy, finish_sampled, make_chunk
from specbench.engine.draft_steps import DraftSteps, draft_steps, sums_of_voters
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.sampling import Sampling, argmax, invalid, probabilities, sample
from specbench.engine.tree import TreeChunk, finish_tree_greedy, finish_tree_sampled, make_tree
from specbench.errors import UsageError
from specbench.kernels.flash_attention import find_peer
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.tree_growth import reference as tree_growth
from specbench.kernels.tree_growth.reference import GrownTree
from specbench.methods.base import Draft, TreeDraft

ONE_ROW = Collect("weight", "last", "layer")
"""Softmax weights of one row, summed over the heads."""


class Compute(ABC):
    """Forwards of a model over a KV cache, and the ranking of its entries.

    Attributes
    ----------
    capturable : bool
        Whether forwards, attention and choices can be part of a CUDA graph.
    fused : bool
        Whether it is `TritonCompute`, whose products a method's own weights can use.
    """

    capturable: bool
    fused = False

    @property
    @abstractmethod
    def name(self) -> str:
        """For the records."""

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.model = model
        self.cache = cache

    @abstractmethod
    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `[R, Q, hidden]` after the final norm; KV is written on the way."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]` of hidden states `[..., hidden]`."""
        return self.model.logits(hidden)

    def best(
        self, tokens: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """The arg-max after each token, and where no token can be chosen: int64, bool `[R, Q]`."""
        logits = self.logits(self.hidden(tokens, positions, attention))
        return argmax(logits), invalid(logits)

    def first(self, hidden: Tensor) -> Tensor:
        """The arg-max int64 `[n]` of the logits of hidden states `[n, hidden]`."""
        return argmax(self.logits(hidden))

    def top_tokens(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The `k` most probable tokens of rows `[n, V]`; see `kernels.tree_growth`."""
        return tree_growth.top_tokens(logits, k)

    def add_level(
        self, tree: GrownTree, scores: Tensor, tokens: Tensor, begin: int, width: int
    ) -> None:
        """Write the next level of a tree of drafts; see `kernels.tree_growth`."""
        tree_growth.add_level(tree, scores, tokens, begin, width)

    def probabilities(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """The distribution `[..., V]` of logits `[..., V]`; see `sampling.probabilities`."""
        return probabilities(logits, sampling)

    def sample(self, logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens `[R]` of logits `[R, V]`, and their distribution; see `sampling.sample`."""
        return sample(logits, sampling, u)

    @abstractmethod
    def attend(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attention over what a layer has cached, for a method's own forwards.

        Arguments and result are those of `kernels.paged_attention`, with any number of query heads
        that the KV heads divide; with a `mask`, those of `kernels.tree_attention`.
        """

    def make_chunk(self, batch: Batch, draft: Draft | None, gamma: int, max_len: int) -> Chunk:
        """What a verification reads; see `chunk.make_chunk`."""
        return make_chunk(batch, draft, gamma, max_len)

    def draft_steps(self, batch: Batch, gamma: int, reach: Tensor, max_len: int) -> DraftSteps:
        """What the steps of a chain of drafts read; see `draft_steps.draft_steps`."""
        return draft_steps(batch, gamma, reach, max_len)

    def sums_of_voters(self, batch: Batch, queries: Queries, lse: Tensor, out: Tensor) -> None:
        """What normalises the votes of a verification; see `draft_steps.sums_of_voters`."""
        sums_of_voters(batch, queries, lse, out)

    def finish_greedy(self, batch: Batch, chunk: Chunk, best: Tensor, bad: Tensor) -> Tensor:
        """Accept and commit at temperature 0; see `chunk.finish_greedy`."""
        return finish_greedy(batch, chunk, best, bad)

    def finish_sampled(
        self,
        batch: Batch,
        chunk: Chunk,
        draft: Draft | None,
        logits: Tensor,
        sampling: Sampling,
    ) -> Tensor:
        """Accept and commit above temperature 0; see `chunk.finish_sampled`."""
        return finish_sampled(batch, chunk, draft, logits, sampling)

    def make_tree(self, batch: Batch, draft: TreeDraft, gamma: int, max_len: int) -> TreeChunk:
        """What a verification of trees reads; see `tree.make_tree`."""
        return make_tree(batch, draft, gamma, max_len)

    def finish_tree_greedy(
        self, batch: Batch, chunk: TreeChunk, best: Tensor, bad: Tensor, gamma: int
    ) -> Tensor:
        """Accept, compact and commit at temperature 0; see `tree.finish_tree_greedy`."""
        return finish_tree_greedy(self.cache, batch, chunk, best, bad, gamma)

    def finish_tree_sampled(
        self, batch: Batch, chunk: TreeChunk, logits: Tensor, sampling: Sampling, gamma: int
    ) -> Tensor:
        """The same above temperature 0; see `tree.finish_tree_sampled`."""
        drawn = self.sample
        return finish_tree_sampled(self.cache, batch, chunk, logits, sampling, gamma, drawn)

    @abstractmethod
    def attend_sparsely(
        self, layer: int, q: Tensor, selected: Tensor, tail: Tensor, scale: float, unit: int = 1
    ) -> Tensor:
        """Attention of one query a request over listed entries of a layer.

        Arguments and result are those of `kernels.sparse_attention`.
        """

    @abstractmethod
    def select_pages(
        self,
        q: Tensor,
        page_min: Tensor,
        page_max: Tensor,
        block_table: Tensor,
        complete: Tensor,
        keep: Tensor,
        out: Tensor,
    ) -> None:
        """Write the pages whose keys may match the query best; see `kernels.page_bounds`.

        Parameters
        ----------
        q : Tensor
            `[R, 1, H, D]`.
        page_min, page_max : Tensor
            `[pages, Hkv, D]`.
        block_table : Tensor
            int64 `[R, P]`.
        complete, keep : Tensor
            int64 `[R]`, pages that are candidates, from the first, and how many of them are kept.
        out : Tensor
            Integers `[R, Hkv, K]`, written: pages of the cache in no order, -1 past `keep`.
        """

    @abstractmethod
    def weigh(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        scores: Tensor,
    ) -> None:
        """How much each entry of a layer matters to one query a request.

        Parameters
        ----------
        layer : int
        q : Tensor
            `[R, 1, H, D]`.
        block_table, kv_lens, q_lens, scale
            As for `kernels.paged_attention`, ``q_lens[r]`` 1 or 0.
        scores : Tensor
            float32 `[R, 1, L]`, written: softmax weights, summed over the heads. A request without
            a query is left as it was, and what stands past ``kv_lens[r]`` holds anything.
        """

    @abstractmethod
    def row_weights(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        mask: Tensor | None,
        scale: float,
        weights: Tensor,
    ) -> None:
        """Softmax weights of every row of a layer, averaged over the heads.

        Arguments are those of `kernels.tree_attention`'s `row_weights`; what stands past
        ``kv_lens[r]`` in the result holds anything.
        """

    @abstractmethod
    def beside(self, model: Transformer, cache: KVCache) -> Self:
        """One of the same kind for another model and cache."""

    @abstractmethod
    def select_slots(
        self,
        scores: Tensor,
        ranked: Tensor,
        keep: Tensor,
        batch: Batch,
        rows: slice,
        out: Tensor,
        sinks: int = 0,
        window: int = 0,
    ) -> None:
        """Write the cache slots of the best entries of some of the batch's rows.

        Parameters
        ----------
        scores : Tensor
            float32 `[layers, R, S, L]`, R the number of `rows`.
        ranked, keep : Tensor
            int64 `[R]`, candidates, and how many of them are kept.
        batch : Batch
        rows : slice
        out : Tensor
            Integers `[layers, R, S, K]`, written; -1 past `keep`.
        sinks, window : int
            First and last candidates that are kept whatever their score.
        """


def uses_triton(backend: AttentionBackend, device: str, dtype: torch.dtype) -> bool:
    """Whether the engine runs on the Triton kernels; `auto` does on a CUDA device, where it can.

    Raises
    ------
    UsageError
        They are asked for, but the package is missing, or for float64.
    """
    there = find_spec("triton") is not None
    if backend == "sdpa":
        return False
    if backend == "auto":
        return device == "cuda" and dtype.itemsize <= 4 and there
    if not there:
        raise UsageError(f"--attention-backend {backend} needs Triton: pip install triton")
    if dtype == torch.float64:
        raise UsageError(
            f"--attention-backend {backend}: the kernels compute in float32 at most, not float64; "
            "use sdpa"
        )
    return True


def make_compute(backend: AttentionBackend, model: Transformer, cache: KVCache) -> Compute:
    """The compute of a backend.

    ``triton`` takes the kernels of this project, ``flash-attn`` FlashAttention-3 for prefill and
    for decoding without drafts, ``sdpa`` plain torch for all. ``auto`` is Triton on a CUDA device,
    with FlashAttention for prefill where it is installed, and plain torch elsewhere.

    Raises
    ------
    UsageError
        See `uses_triton`; or FlashAttention-3 is asked for and not installed.
    """
    device, dtype = cache.keys.device, cache.keys.dtype
    if not uses_triton(backend, device.type, dtype):
        from specbench.engine.reference_compute import ReferenceCompute

        return ReferenceCompute(model, cache)
    from specbench.engine.triton_compute import TritonCompute

    flash = None
    if backend != "triton" and device.type == "cuda" and dtype.itemsize == 2:
        flash = find_peer()
    if backend == "flash-attn" and flash is None:
        raise UsageError(
            "--attention-backend flash-attn needs FlashAttention-3 (its package, or the one inside "
            "vLLM), a CUDA device and a half type; leave the option out for Triton's kernels"
        )
    return TritonCompute(model, cache, flash=flash, flash_decode=backend == "flash-attn")
