"""What the model's attention layers do in each kind of forward: full, with scores, or sparse."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.kv_cache import KVCache
from specbench.engine.phases import Phases
from specbench.kernels.paged_attention.reference import (
    Collect,
    collect_scores,
    log_sum_exp,
    paged_attention,
    write_kv,
)
from specbench.kernels.sparse_attention.reference import sparse_attention
from specbench.kernels.tree_attention.reference import tree_attention


@dataclass
class ScoreCollector:
    """Where a forward leaves its attention scores.

    Attributes
    ----------
    collect : Collect
        What is summed.
    scores : Tensor
        `[layers, R, S, L]` for the forward's requests.
    ranked : Tensor
        `[R]`, entries that are candidates, from the first.
    norm : Tensor, optional
        `[layers, R, c, H]`, by which a verification's weights are normalised in place of their own
        log-sum-exp, which it leaves there; a prompt's weights are exact, and its last row's
        log-sum-exp is left for all.
    """

    collect: Collect
    scores: Tensor
    ranked: Tensor
    norm: Tensor | None = None


class Tap(Protocol):
    """What a method has called in every layer of a verification, after the attention."""

    def __call__(self, layer: int, q: Tensor, attention: "FullAttention") -> None:
        """Look at the queries `[R, Q, H, D]` and at what they attend over."""
        ...


class FullAttention:
    """Writes the chunk's KV and attends over everything before it (prefill, verification).

    Parameters
    ----------
    cache : KVCache
    block_table, slots, kv_lens, q_lens : Tensor
        `[R, P]`, `[R, Q]`, `[R]`, `[R]` as the kernels take them.
    scale : float
    collector : ScoreCollector or None
    phases : Phases
        The time of collector and tap goes to "selection".
    length : int, optional
        `kv_lens` of the only request, where the host knows it: of a prompt's chunk.
    tap : Tap, optional
    """

    def __init__(
        self,
        cache: KVCache,
        block_table: Tensor,
        slots: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        collector: ScoreCollector | None,
        phases: Phases,
        length: int | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.cache = cache
        self.block_table = block_table
        self.slots = slots
        self.kv_lens = kv_lens
        self.q_lens = q_lens
        self.scale = scale
        self.collector = collector
        self.phases = phases
        self.length = length
        self.tap = tap

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.layer(layer)
        write_kv(keys, k, self.slots)
        write_kv(values, v, self.slots)
        out = self.attend(q, keys, values)
        if self.tap is not None:
            with self.phases("selection"):
                self.tap(layer, q, self)
        if self.collector is not None:
            with self.phases("selection"):
                self._collect(layer, q, keys, self.collector)
        return out

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the chunk over one layer's cache."""
        return paged_attention(
            q, keys, values, self.block_table, self.kv_lens, self.q_lens, self.scale
        )

    def _collect(self, layer: int, q: Tensor, keys: Tensor, collector: ScoreCollector) -> None:
        where = self.block_table, self.kv_lens
        norm = None if collector.norm is None else collector.norm[layer]
        prompt = self.length is not None
        collect_scores(
            q,
            keys,
            *where,
            self.q_lens,
            collector.ranked,
            self.scale,
            collector.collect,
            collector.scores[layer],
            None if prompt else norm,
        )
        if prompt and norm is not None:
            one = torch.ones_like(self.q_lens)
            norm.copy_(log_sum_exp(q[:, -1:], keys, *where, one, self.scale))


class TreeAttention(FullAttention):
    """The same for the nodes of trees, which see the prefix and their ancestors.

    Parameters
    ----------
    cache, block_table, slots, kv_lens, q_lens
        As for `FullAttention`; the tree is the last C of the ``kv_lens[r]`` entries.
    mask : Tensor
        bool `[R, Q, C]`: the entries of the tree that a row sees.
    scale, phases, tap
        As for `FullAttention`.
    """

    def __init__(
        self,
        cache: KVCache,
        block_table: Tensor,
        slots: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        mask: Tensor,
        scale: float,
        phases: Phases,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(cache, block_table, slots, kv_lens, q_lens, scale, None, phases, tap=tap)
        self.mask = mask

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the nodes over one layer's cache."""
        return tree_attention(
            q, keys, values, self.block_table, self.kv_lens, self.q_lens, self.mask, self.scale
        )[0]


class SparseAttention:
    """Writes one token's KV and attends over a layer's selected entries and the tail (drafts).

    Parameters
    ----------
    cache : KVCache
    selected : Tensor
        Integers `[layers, R, S, K]`, slots, -1 for none. They and their entries are written before
        the forward begins.
    tail : Tensor
        int64 `[R, T]` slots, -1 for none; the token's own is among them.
    slots : Tensor
        int64 `[R, 1]`, where the token's KV goes; -1 for a row that does not draft.
    scale : float
    lse : Tensor, optional
        `[layers, R, H]`, where the log-sum-exps of a token's logits are left.
    """

    def __init__(
        self,
        cache: KVCache,
        selected: Tensor,
        tail: Tensor,
        slots: Tensor,
        scale: float,
        lse: Tensor | None = None,
    ) -> None:
        self.cache = cache
        self.selected = selected
        self.tail = tail
        self.slots = slots
        self.scale = scale
        self.lse = lse

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.layer(layer)
        write_kv(keys, k, self.slots)
        write_kv(values, v, self.slots)
        lists = self.selected[layer], self.tail
        lse = None if self.lse is None else self.lse[layer]
        return sparse_attention(q, keys, values, *lists, self.scale, lse=lse)


class CachedAttention(ABC):
    """Attention of a method's own over the engine's cache.

    Only `attend` is the method's: writing is left to the forward, whose kernels may do it with
    the projection.

    Parameters
    ----------
    cache : KVCache
    slots : Tensor
        int64 `[R, Q]`, where the tokens' KV goes; -1 for none.
    """

    def __init__(self, cache: KVCache, slots: Tensor) -> None:
        self.cache = cache
        self.slots = slots

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.layer(layer)
        write_kv(keys, k, self.slots)
        write_kv(values, v, self.slots)
        return self.attend(layer, q)

    @abstractmethod
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q` `[R, Q, H, D]`, whose keys and values are in the cache."""
