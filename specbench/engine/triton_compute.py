"""Forwards in Triton kernels: five launches a layer for a few rows, cuBLAS's products for more."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

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
from specbench.engine.triton_drafting import TritonDrafting
from specbench.kernels.flash_attention import Peer
from specbench.kernels.head import sample
from specbench.kernels.head.accept import accept_sampled
from specbench.kernels.head.triton import SCRATCH_TILES, head_argmax
from specbench.kernels.iteration.triton import draft_steps, finish_greedy, make_chunk
from specbench.kernels.iteration.voters import sums_of_voters
from specbench.kernels.launch import Scratch, multiprocessors
from specbench.kernels.linear.plan import MAX_ROWS, scratch_size
from specbench.kernels.linear.plan import choose as choose_linear
from specbench.kernels.linear.triton import linear_prenorm, linear_small
from specbench.kernels.mlp.triton import gate_up_small, silu_mul
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.norm.triton import add_rms_norm, embed_prenorm, prenorm, rms_norm
from specbench.kernels.qkv.project import by_heads, project_rope_write_kv
from specbench.kernels.qkv.triton import rope_write_kv
from specbench.methods.base import Draft

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

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute`; in the model's type, which the sampling kernels take as it is."""
        return F.linear(hidden, self.model.head)

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

    def _stream(self, tokens: Tensor, positions: Tensor, attention: Cached) -> "Stream":
        """The residual stream after the last layer."""
        model, fusion = self.model, self.fusion
        eps, n = model.config.rms_norm_eps, tokens.numel()
        flat, slots = (x.reshape(-1).contiguous() for x in (positions, attention.slots))
        layers = cast(list[Layer], list(model.layers))
        stream = self.begin(tokens.reshape(-1), layers[0].attn_norm if n <= fusion.qkv else None)
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            following = None if last else layers[index + 1].qkv
            keys, values = self.cache.layer(index)
            place = (layer.qk_norm, model.cos, model.signed_sin, flat, slots, keys, values, eps)
            if n <= fusion.qkv:
                q = project_rope_write_kv(
                    stream.prenormed(layer.attn_norm),
                    layer.qkv,
                    layer.qkv_bias,
                    *place,
                    scratch=self._scratch,
                    ahead=layer.o,
                    # the kernels of a layer stand between
                    settled=index > 0,
                )
            else:
                h = stream.normed(layer.attn_norm, eps)
                q = rope_write_kv(F.linear(h, layer.qkv), layer.qkv_bias, *place)
            q = q.view(*tokens.shape, *q.shape[1:])
            out = self._attention(attention, index, q, layer.gate_up).view(n, -1)
            if n <= fusion.o:
                norm = layer.mlp_norm if n <= fusion.gate_up else None
                self._add(stream, out, layer.o, layer.o_bias, norm, layer.down)
            else:
                stream.add(self.projection(out, layer.o, layer.o_bias))
            if n <= fusion.gate_up:
                gated = gate_up_small(
                    stream.prenormed(layer.mlp_norm),
                    layer.gate_up,
                    layer.gate_up_bias,
                    eps=eps,
                    ahead=following,
                )
            else:
                h = stream.normed(layer.mlp_norm, eps)
                gated = silu_mul(F.linear(h, layer.gate_up, layer.gate_up_bias))
            if n <= fusion.down:
                wanted = n <= (fusion.head if last else fusion.qkv)
                norm = model.final_norm if last else layers[index + 1].attn_norm
                norm = norm if wanted else None
                self._add(stream, gated, layer.down, layer.down_bias, norm)
            else:
                stream.add(self.projection(gated, layer.down, layer.down_bias))
        return stream

    def begin(self, tokens: Tensor, norm: Tensor | None) -> "Stream":
        """The residual stream of tokens `[n]`, and the norm begun on it where it is prenormed."""
        if norm is None:
            return Stream(F.embedding(tokens, self.model.embed))
        return Stream(*embed_prenorm(tokens.contiguous(), self.model.embed, norm))

    def projection(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What attention and MLP add to the stream, where no fused kernel computes it."""
        return F.linear(x, weight, bias)

    def _add(
        self,
        stream: "Stream",
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm: Tensor | None,
        ahead: Tensor | None = None,
    ) -> None:
        """A projection onto the stream in one launch, the beginning of the next norm with it."""
        residual, scratch = stream.settled(), self._scratch
        if norm is None:
            linear_small(x, weight, bias, residual=residual, scratch=scratch)
        else:
            stream.ready = linear_prenorm(
                x, weight, bias, norm=norm, residual=residual, scratch=scratch, ahead=ahead
            )

    @cached_property
    def _scratch(self) -> Scratch:
        """Enough for every projection of up to 64 rows."""
        config, sms = self.model.config, multiprocessors(self.device)
        dim, hidden = config.head_dim, config.hidden_size
        heads = config.num_heads + 2 * config.num_kv_heads
        needs = [(0, SCRATCH_TILES)]
        for rows in (16, 32, 64):
            # tiles of halves need none
            qkv = by_heads(rows, heads, dim, hidden, sms)
            needs.append(scratch_size(rows, heads * qkv.block_n, hidden, qkv, alone=True))
            for inner in (config.num_heads * dim, config.intermediate_size):
                launch = choose_linear(rows, hidden, inner, sms)
                needs.append(scratch_size(rows, hidden, inner, launch))
        floats, tiles = (max(sizes) for sizes in zip(*needs, strict=True))
        return Scratch.make(self.device, floats, tiles)


class Stream:
    """The residual stream, what is still to be added to it, and the norm that was begun on it."""

    def __init__(self, x: Tensor, ready: Prenormed | None = None) -> None:
        self.x = x
        self.delta: Tensor | None = None
        self.ready = ready

    def add(self, delta: Tensor) -> None:
        """Add with the next norm, in one launch."""
        self.x = self.settled()
        self.delta = delta

    def settled(self) -> Tensor:
        """The stream with everything added; a norm begun before is out of date then."""
        if self.delta is not None:
            self.x += self.delta
        self.delta = self.ready = None
        return self.x

    def normed(self, weight: Tensor, eps: float) -> Tensor:
        """The RMS norm."""
        delta, self.delta = self.delta, None
        if delta is None:
            return rms_norm(self.x, weight, eps)
        return add_rms_norm(self.x, delta, weight, eps)

    def prenormed(self, weight: Tensor) -> Prenormed:
        """The same, for a product that completes it."""
        ready, self.ready = self.ready, None
        if ready is not None:
            return ready
        delta, self.delta = self.delta, None
        return prenorm(self.x, weight, delta)
