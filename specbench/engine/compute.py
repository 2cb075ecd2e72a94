"""How the engine's forwards are computed: in plain torch here, in fused kernels on a GPU."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.batch import Batch, slots_of_sets
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.sampling import Sampling, argmax, invalid, probabilities
from specbench.errors import UsageError
from specbench.kernels.paged_attention.reference import paged_attention
from specbench.kernels.selection import reference as selection

Kind = Literal["auto", "reference", "triton"]


class Compute(ABC):
    """Forwards of a model over a KV cache, and the ranking of its entries.

    Attributes
    ----------
    name : str
        For the records.
    capturable : bool
        Whether a forward over `FullAttention` and `SparseAttention` can be part of a CUDA graph.
    """

    name: str
    capturable: bool

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

    name = "reference"
    capturable = False

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


def make_compute(kind: Kind, model: Transformer, cache: KVCache) -> Compute:
    """The compute of that kind; `auto` takes Triton on a CUDA device, where it can.

    Raises
    ------
    UsageError
        Triton is asked for without a CUDA device, without the package, or for float64.
    """
    from importlib.util import find_spec

    device, dtype = cache.keys.device, cache.keys.dtype
    if kind == "auto":
        usable = device.type == "cuda" and dtype.itemsize <= 4 and find_spec("triton")
        kind = "triton" if usable else "reference"
    if kind == "reference":
        return ReferenceCompute(model, cache)
    if find_spec("triton") is None:
        raise UsageError("the Triton kernels need the package: pip install triton")
    if dtype == torch.float64:
        raise UsageError("the Triton kernels compute in float32 at most; use the reference")
    from specbench.engine.triton_compute import TritonCompute

    return TritonCompute(model, cache)
