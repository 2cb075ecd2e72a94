"""Attention of the engine's forwards on the Triton kernels, and the memory that these share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.forward import (
    CachedAttention,
    FullAttention,
    ScoreCollector,
    SparseAttention,
    TreeAttention,
)
from specbench.engine.kv_cache import KVCache, pages_for
from specbench.engine.model import Transformer
from specbench.kernels.flash_attention import Peer
from specbench.kernels.paged_attention.reference import Collect, collect_scores
from specbench.kernels.paged_attention.triton import PagedAttention
from specbench.kernels.sparse_attention.triton import sparse_attention
from specbench.kernels.sparse_attention.workspace import SparseAttentionWorkspace


class TritonAttention:
    """Calls the kernel that a forward's attention asks for.

    Parameters
    ----------
    model : Transformer
    cache : KVCache
    flash : Peer, optional
        FlashAttention, for prefill.
    flash_decode : bool
        And for decoding without drafts.
    """

    def __init__(
        self, model: Transformer, cache: KVCache, flash: Peer | None, flash_decode: bool
    ) -> None:
        self.model, self.cache = model, cache
        self.flash, self.flash_decode = flash, flash_decode
        self._narrow: tuple[FullAttention, Tensor, Tensor] | None = None
        self._paged: dict[tuple[int, int, int, Collect | None, bool, int], PagedAttention] = {}
        self._sparse: dict[int, SparseAttentionWorkspace] = {}

    def __call__(
        self,
        attention: FullAttention | SparseAttention | CachedAttention,
        layer: int,
        q: Tensor,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """Attention of `q` `[R, Q, H, D]`, whose keys and values are in the cache.

        `ahead` is a weight that is read soon, which the kernel may fetch.
        """
        if isinstance(attention, CachedAttention):
            return attention.attend(layer, q)
        if isinstance(attention, SparseAttention):
            lists = attention.selected[layer], attention.tail
            lse = None if attention.lse is None else attention.lse[layer]
            return self.sparsely(
                layer, q, *lists, attention.scale, lse=lse, settled=True, ahead=ahead
            )
        out = self._attend_fully(attention, layer, q, ahead)
        if attention.tap is not None:
            attention.tap(layer, q, attention)
        return out

    def sparsely(
        self,
        layer: int,
        q: Tensor,
        selected: Tensor,
        tail: Tensor,
        scale: float,
        unit: int = 1,
        **options: Any,
    ) -> Tensor:
        """Attention of one query a request over listed entries; see `sparse_attention`."""
        caches, workspace = self.cache.layer(layer), self._sparse_workspace(q)
        return sparse_attention(
            q, *caches, selected, tail, scale, unit, workspace=workspace, **options
        )

    def _attend_fully(
        self, attention: FullAttention, layer: int, q: Tensor, ahead: Tensor | None
    ) -> Tensor:
        keys, values = self.cache.layer(layer)
        collector = attention.collector
        if attention.length is not None:
            # chunks differ in their length: for each, a kernel would be compiled anew
            if self.flash is None:
                out = gathered_attention(q, keys, values, attention, attention.length)
            else:
                out = self._flash(q, keys, values, attention, attention.length)
            if collector is not None:
                self._collect_prefill(q, keys, attention, collector, layer)
            return out
        rows, queries = q.shape[:2]
        lengths = attention.kv_lens, attention.q_lens
        common = keys, values, attention.block_table, *lengths, attention.scale
        if isinstance(attention, TreeAttention):
            # a tree stands behind the longest text
            length = self.model.max_len + queries
            paged = self.workspace(rows, queries, None, length=length)
            return paged(q, *common, tree_mask=attention.mask)
        collect = None if collector is None else collector.collect
        if self.flash_decode and collector is None and queries == 1:
            return self._flash(q, keys, values, attention, self.model.max_len)
        norm = None if collector is None or collector.norm is None else collector.norm[layer]
        paged = self.workspace(rows, queries, collect, one_pass=norm is not None)
        if collector is None:
            return paged(q, *common, ahead=ahead)
        scores = collector.scores[layer]
        return paged(q, *common, ranked=collector.ranked, scores=scores, norm=norm, ahead=ahead)

    def _flash(
        self, q: Tensor, keys: Tensor, values: Tensor, attention: FullAttention, longest: int
    ) -> Tensor:
        """By FlashAttention, which takes every row of `q` for one that counts."""
        assert self.flash is not None
        if self._narrow is None or self._narrow[0] is not attention:
            # once a forward: it wants int32
            self._narrow = attention, attention.block_table.int(), attention.kv_lens.int()
        _, table, lens = self._narrow
        return self.flash.attend(q, keys, values, table, lens, longest, True)

    def _collect_prefill(
        self,
        q: Tensor,
        keys: Tensor,
        attention: FullAttention,
        collector: ScoreCollector,
        layer: int,
    ) -> None:
        """Scores of a prompt's chunk: of its last row by the kernel, else by the reference."""
        collect, scores = collector.collect, collector.scores[layer]
        if collect.queries != "last" or collect.last != 1 or collect.add:
            collect_scores(
                q,
                keys,
                attention.block_table,
                attention.kv_lens,
                attention.q_lens,
                collector.ranked,
                attention.scale,
                collect,
                scores,
            )
            return
        norm = None if collector.norm is None else collector.norm[layer]
        self.workspace(1, 1, collect)(
            q[:, -1:].contiguous(),
            keys,
            None,
            attention.block_table,
            attention.kv_lens,
            torch.ones_like(attention.q_lens),
            attention.scale,
            lse=None if norm is None else norm[:, :1],
            ranked=collector.ranked,
            scores=scores,
        )
        if norm is not None:
            norm[:, 1:] = norm[:, :1]

    def workspace(
        self,
        rows: int,
        queries: int,
        collect: Collect | None,
        heads: int | None = None,
        one_pass: bool = False,
        length: int | None = None,
    ) -> PagedAttention:
        """Memory for calls of up to `rows` requests, `queries` rows over `length` entries each."""
        config, dtype = self.model.config, self.model.dtype
        heads, length = heads or config.num_heads, length or self.model.max_len
        key = rows, queries, heads, collect, one_pass, length
        if key not in self._paged:
            shape = rows, queries, heads, config.num_kv_heads, config.head_dim, length
            where = dtype, self.cache.keys.device
            self._paged[key] = PagedAttention(*shape, *where, collect, one_pass)
        return self._paged[key]

    def _sparse_workspace(self, q: Tensor) -> SparseAttentionWorkspace:
        rows = len(q)
        if rows not in self._sparse:
            config = self.model.config
            self._sparse[rows] = SparseAttentionWorkspace(
                rows,
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
                q.dtype,
                self.cache.keys.device,
            )
        return self._sparse[rows]


def gathered_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, attention: FullAttention, length: int
) -> Tensor:
    """Causal attention of one request's chunk `[1, Q, H, D]`, by torch's own kernels."""
    from torch.nn.attention.bias import causal_lower_right

    pages = attention.block_table[0, : pages_for(length)]
    k, v = (
        cache[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for cache in (k_cache, v_cache)
    )
    group = q.shape[2] // k.shape[1]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k,
        v,
        attn_mask=causal_lower_right(q.shape[1], length),
        scale=attention.scale,
        enable_gqa=group > 1,
    )
    return out.transpose(1, 2).contiguous()
