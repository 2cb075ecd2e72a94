"""How the engine's forwards are computed: in plain torch here, in fused kernels on a GPU."""

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.batch import Batch, slots_of_sets
from specbench.engine.chunk import Chunk, finish_greedy, make_chunk
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.sampling import Sampling, argmax, invalid, probabilities
from specbench.errors import UsageError
from specbench.kernels.flash_attention import find_peer
from specbench.kernels.paged_attention.reference import paged_attention
from specbench.kernels.selection import reference as selection
from specbench.methods.base import Draft

Backend = Literal["auto", "triton", "flash-attn", "sdpa"]


class Compute(ABC):
    """Forwards of a model over a KV cache, and the ranking of its entries.

    Attributes
    ----------
    capturable : bool
        Whether a forward over `FullAttention` and `SparseAttention` can be part of a CUDA graph.
    """

    capturable: bool

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

    def probabilities(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """The distribution `[..., V]` of logits `[..., V]`; see `sampling.probabilities`."""
        return probabilities(logits, sampling)

    @abstractmethod
    def attend(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
    ) -> Tensor:
        """Attention over what a layer has cached, for a draft that is no part of the model.

        Arguments and result are those of `kernels.paged_attention`, with any number of query heads
        that the KV heads divide.
        """

    def make_chunk(self, batch: Batch, draft: Draft | None, gamma: int, max_len: int) -> Chunk:
        """What a verification reads; see `chunk.make_chunk`."""
        return make_chunk(batch, draft, gamma, max_len)

    def finish_greedy(self, batch: Batch, chunk: Chunk, best: Tensor, bad: Tensor) -> Tensor:
        """Accept and commit at temperature 0; see `chunk.finish_greedy`."""
        return finish_greedy(batch, chunk, best, bad)

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


class ReferenceCompute(Compute):
    """Plain torch on any device: the truth, and the CPU's path."""

    capturable = False

    @property
    def name(self) -> str:
        """For the records."""
        return "reference"

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `Compute`."""
        out: Tensor = self.model(tokens, positions, attention)
        return out

    def attend(
        self,
        layer: int,
        q: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
    ) -> Tensor:
        """See `Compute`."""
        keys, values = self.cache.layer(layer)
        return paged_attention(q, keys, values, block_table, kv_lens, q_lens, scale)

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
        """See `Compute`."""
        best = selection.select(scores, ranked, keep, out.shape[-1], sinks, window)
        out.copy_(slots_of_sets(batch.block_table[rows], best))


def uses_triton(backend: Backend, device: str, dtype: torch.dtype) -> bool:
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


def make_compute(backend: Backend, model: Transformer, cache: KVCache) -> Compute:
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
