"""Forwards in Triton kernels: five launches a layer for a few rows, cuBLAS's products for more."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config import Queries
from specbench.engine.acceptance import chain_numbers
from specbench.engine.batch import Batch
from specbench.engine.chunk import Chunk
from specbench.engine.draft_steps import DraftSteps
from specbench.engine.forward import CachedAttention, FullAttention, SparseAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Layer, Transformer
from specbench.engine.random import Purpose, uniform
from specbench.engine.sampling import Sampling
from specbench.engine.stream import Stream, make_scratch
from specbench.engine.tree import TreeChunk
from specbench.engine.triton_drafting import TritonDrafting
from specbench.kernels.flash_attention import Peer
from specbench.kernels.head import sample
from specbench.kernels.head.accept import accept_sampled
from specbench.kernels.head.triton import head_argmax
from specbench.kernels.iteration.tree import finish_tree_greedy, finish_tree_sampled, make_tree
from specbench.kernels.iteration.triton import draft_steps, finish_greedy, make_chunk
from specbench.kernels.iteration.voters import sums_of_voters
from specbench.kernels.launch import Scratch
from specbench.kernels.linear.plan import MAX_ROWS
from specbench.kernels.linear.triton import linear_prenorm, linear_small
from specbench.kernels.mlp.triton import gate_up_small, silu_mul
from specbench.kernels.norm.triton import embed_prenorm
from specbench.kernels.qkv.project import project_rope_write_kv
from specbench.kernels.qkv.triton import rope_write_kv
from specbench.kernels.tree_growth import triton as triton_growth
from specbench.kernels.tree_growth.reference import GrownTree
from specbench.methods.base import Draft, TreeDraft

Cached = FullAttention | SparseAttention | CachedAttention


@dataclass(frozen=True)
class Fusion:
    """Up to how many rows each projection is computed by a kernel of ours; cuBLAS takes the rest.

    Attributes
    ----------
    qkv, o, gate_up, down, head : int
        At most 64.
    """

    qkv: int = MAX_ROWS
    o: int = MAX_ROWS
    gate_up: int = MAX_ROWS
    down: int = MAX_ROWS
    head: int = MAX_ROWS


class TritonCompute(TritonDrafting):
    """The kernels of `specbench.kernels`, with the memory that they share.

    Parameters
    ----------
    model : Transformer
    cache : KVCache
    fusion : Fusion, optional
        By default all that fits.
    flash : Peer, optional
        FlashAttention, for prefill.
    flash_decode : bool
        And for decoding without drafts.
    """

    fused = True

    def __init__(
        self,
        model: Transformer,
        cache: KVCache,
        fusion: Fusion | None = None,
        flash: Peer | None = None,
        flash_decode: bool = False,
    ) -> None:
        super().__init__(model, cache, flash, flash_decode)
        # an unnormed product of float16 can overflow, so there the norm stays apart
        self.fusion = fusion or (
            Fusion(0, MAX_ROWS, 0, MAX_ROWS, 0) if model.dtype == torch.float16 else Fusion()
        )

    @property
    def name(self) -> str:
        """For the records."""
        if self.flash is None:
            return "triton"
        return f"triton, {self.flash.name} for prefill{' and decode' if self.flash_decode else ''}"

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `Compute`."""
        if not isinstance(attention, Cached):
            # attention of a method's own takes keys and values from the caller
            out: Tensor = self.model(tokens, positions, attention)
            return out
        stream = self._stream(tokens, positions, attention)
        h = stream.normed(self.model.final_norm, self.model.config.rms_norm_eps)
        return h.view(*tokens.shape, -1)

    def best(
        self, tokens: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """See `Compute`."""
        model = self.model
        few = tokens.numel() <= self.fusion.head
        if few and isinstance(attention, Cached):
            stream = self._stream(tokens, positions, attention)
            best, bad = head_argmax(
                stream.prenormed(model.final_norm),
                model.head,
                eps=model.config.rms_norm_eps,
                scratch=self._scratch,
            )
            return best.view(tokens.shape), bad.view(tokens.shape)
        # in the model's type: rounding to float32 alters neither order nor ties
        logits = F.linear(self.hidden(tokens, positions, attention), model.head)
        # the first of equals, as the arg-max, and in one pass with what shows an invalid row
        most, best = logits.max(-1)
        return best, ~most.isfinite()

    def first(self, hidden: Tensor) -> Tensor:
        """See `Compute`; without logits in memory where the rows are few."""
        if len(hidden) > self.fusion.head:
            return self.logits(hidden).argmax(-1)
        return head_argmax(hidden, self.model.head, scratch=self._scratch)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute`; in the model's type, which the sampling kernels take as it is."""
        # rows that are apart in memory would be a product of the whole head each
        rows = hidden.reshape(-1, hidden.shape[-1])
        return F.linear(rows, self.model.head).unflatten(0, hidden.shape[:-1])

    def top_tokens(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """See `Compute`; two launches."""
        return triton_growth.top_tokens(logits, k)

    def add_level(
        self, tree: GrownTree, scores: Tensor, tokens: Tensor, begin: int, width: int
    ) -> None:
        """See `Compute`; one launch."""
        triton_growth.add_level(tree, scores, tokens, begin, width)

    def probabilities(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """See `Compute`."""
        return sample.probabilities(logits, sampling)

    def sample(self, logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
        """See `Compute`; two launches, or three where no token is left out."""
        token, probs, _ = sample.sample(logits, sampling, u)
        return token, probs

    def beside(self, model: Transformer, cache: KVCache) -> "TritonCompute":
        """See `Compute`."""
        return TritonCompute(model, cache)

    def make_chunk(self, batch: Batch, draft: Draft | None, gamma: int, max_len: int) -> Chunk:
        """See `Compute`; one launch in place of twenty."""
        return make_chunk(batch, draft, gamma, max_len)

    def draft_steps(self, batch: Batch, gamma: int, reach: Tensor, max_len: int) -> DraftSteps:
        """See `Compute`; one launch in place of thirty."""
        return draft_steps(batch, gamma, reach, max_len)

    def sums_of_voters(self, batch: Batch, queries: Queries, lse: Tensor, out: Tensor) -> None:
        """See `Compute`; one launch in place of nine."""
        sums_of_voters(batch, queries, lse, out)

    def finish_greedy(self, batch: Batch, chunk: Chunk, best: Tensor, bad: Tensor) -> Tensor:
        """See `Compute`; one launch in place of forty."""
        return finish_greedy(batch, chunk, best, bad)

    def finish_sampled(
        self,
        batch: Batch,
        chunk: Chunk,
        draft: Draft | None,
        logits: Tensor,
        sampling: Sampling,
    ) -> Tensor:
        """See `Compute`; what stands and what follows is then committed as at temperature 0."""
        keys = batch.request, batch.lengths
        if draft is None:
            u = uniform(sampling.seed, *keys, 0, Purpose.TARGET)
            token, _, bad = sample.sample(logits[:, 0], sampling, u)
            return finish_greedy(batch, chunk, token[:, None], bad[:, None])
        p, bad = sample.distribution(logits, sampling)
        drafts = draft.tokens, draft.probs, chunk.allowed
        numbers = chain_numbers(sampling, *keys, draft.tokens.shape[1])
        accepted, following = accept_sampled(p, *drafts, *numbers)
        best = torch.cat([draft.tokens, following[:, None]], 1)
        best.scatter_(1, accepted[:, None], following[:, None])
        result = finish_greedy(batch, replace(chunk, allowed=accepted), best, bad)
        result[:, 2] = chunk.allowed
        return result

    def make_tree(self, batch: Batch, draft: TreeDraft, gamma: int, max_len: int) -> TreeChunk:
        """See `Compute`; one launch in place of dozens."""
        return make_tree(batch, draft, gamma, max_len)

    def finish_tree_greedy(
        self, batch: Batch, chunk: TreeChunk, best: Tensor, bad: Tensor, gamma: int
    ) -> Tensor:
        """See `Compute`; two launches in place of a hundred and more."""
        return finish_tree_greedy(self.cache, batch, chunk, best, bad, gamma)

    def finish_tree_sampled(
        self, batch: Batch, chunk: TreeChunk, logits: Tensor, sampling: Sampling, gamma: int
    ) -> Tensor:
        """See `Compute`; as many launches as at temperature 0, and those of a draw."""
        return finish_tree_sampled(self.cache, batch, chunk, logits, sampling, gamma)

    def _stream(self, tokens: Tensor, positions: Tensor, attention: Cached) -> Stream:
        """The residual stream after the last layer."""
        model, fusion, n = self.model, self.fusion, tokens.numel()
        flat, slots = (x.reshape(-1).contiguous() for x in (positions, attention.slots))
        layers = cast(list[Layer], list(model.layers))
        stream = self.begin(tokens.reshape(-1), layers[0].attn_norm if n <= fusion.qkv else None)
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            following = None if last else layers[index + 1].qkv
            q = self.heads(
                stream,
                layer.attn_norm,
                layer.qkv,
                layer.qkv_bias,
                layer.qk_norm,
                flat,
                slots,
                self.cache.layer(index),
                ahead=layer.o,
                # the kernels of a layer stand between
                settled=index > 0,
            )
            q = q.view(*tokens.shape, *q.shape[1:])
            out = self._attention(attention, index, q, layer.gate_up).view(n, -1)
            if n <= fusion.o:
                norm = layer.mlp_norm if n <= fusion.gate_up else None
                self.add(stream, out, layer.o, layer.o_bias, norm, layer.down)
            else:
                stream.add(self.projection(out, layer.o, layer.o_bias))
            gated = self.gated(stream, layer.mlp_norm, layer.gate_up, layer.gate_up_bias, following)
            if n <= fusion.down:
                wanted = n <= (fusion.head if last else fusion.qkv)
                norm = model.final_norm if last else layers[index + 1].attn_norm
                self.add(stream, gated, layer.down, layer.down_bias, norm if wanted else None)
            else:
                stream.add(self.projection(gated, layer.down, layer.down_bias))
        return stream

    def begin(self, tokens: Tensor, norm: Tensor | None) -> Stream:
        """The residual stream of tokens `[n]`, and the norm begun on it where it is prenormed."""
        if norm is None:
            return Stream(F.embedding(tokens, self.model.embed))
        return Stream(*embed_prenorm(tokens.contiguous(), self.model.embed, norm))

    def heads(
        self,
        stream: Stream,
        norm: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        qk_norm: Tensor | None,
        positions: Tensor,
        slots: Tensor,
        caches: tuple[Tensor, Tensor],
        scratch: Scratch | None = None,
        **options: Any,
    ) -> Tensor:
        """Rotated queries `[n, H, D]` of the stream's norm; keys and values go to their slots.

        Heads of `weight` beyond those that the caches have are queries; `options` are those of
        `project_rope_write_kv`.
        """
        model, eps = self.model, self.model.config.rms_norm_eps
        place = qk_norm, model.cos, model.signed_sin, positions, slots, *caches, eps
        if len(stream.x) <= self.fusion.qkv:
            x = stream.prenormed(norm)
            scratch = scratch or self._scratch
            return project_rope_write_kv(x, weight, bias, *place, scratch=scratch, **options)
        return rope_write_kv(F.linear(stream.normed(norm, eps), weight), bias, *place)

    def gated(
        self,
        stream: Stream,
        norm: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """``silu(gate) * up`` `[n, inner]` of the stream's norm."""
        eps = self.model.config.rms_norm_eps
        if len(stream.x) <= self.fusion.gate_up:
            return gate_up_small(stream.prenormed(norm), weight, bias, eps=eps, ahead=ahead)
        return silu_mul(F.linear(stream.normed(norm, eps), weight, bias))

    def projection(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What attention and MLP add to the stream, where no fused kernel computes it."""
        return F.linear(x, weight, bias)

    def add(
        self,
        stream: Stream,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm: Tensor | None,
        ahead: Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """A projection onto the stream in one launch, the beginning of the next norm with it."""
        residual, scratch = stream.settled(), scratch or self._scratch
        if norm is None:
            linear_small(x, weight, bias, residual=residual, scratch=scratch)
        else:
            stream.ready = linear_prenorm(
                x, weight, bias, norm=norm, residual=residual, scratch=scratch, ahead=ahead
            )

    @cached_property
    def _scratch(self) -> Scratch:
        """Enough for every projection of up to 64 rows."""
        config = self.model.config
        heads = config.num_heads + 2 * config.num_kv_heads
        inner = config.num_heads * config.head_dim, config.intermediate_size
        return make_scratch(config.hidden_size, config.head_dim, (heads,), inner, self.device)
