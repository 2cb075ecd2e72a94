"""LongSpec's block on the Triton kernels: ten launches a level in place of a hundred."""

import torch
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.kv_cache import PAGE_SIZE
from specbench.engine.stream import Stream, make_scratch
from specbench.engine.triton_compute import TritonCompute
from specbench.kernels.ring_attention.triton import ring_attention
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.ring import Ring


class Levels:
    """Forwards of the block, a level of drafts each, with the fused products of the target.

    Parameters
    ----------
    block : DraftBlock
    compute : TritonCompute
    ring : Ring
    gamma : int
        Depth of the drafts.
    widths : tuple of int
        How many tokens of a row are fed at each depth: 1 at depth 0, then those of `Ring.draft`.
    scale : float
    """

    def __init__(
        self,
        block: DraftBlock,
        compute: TritonCompute,
        ring: Ring,
        gamma: int,
        widths: tuple[int, ...],
        scale: float,
    ) -> None:
        self.block, self.compute, self.ring = block, compute, ring
        self.widths, self.scale = widths, scale
        config, device = block.config, compute.device
        rows = len(ring.keys)
        row = torch.arange(rows, device=device)
        self.reach = torch.arange(-gamma, 1, device=device)
        self.start = ring.start(row)[:, None]
        # of all levels below the root, one after the other: whose token, how deep, and its entry
        counts = [rows * width for width in widths[1:]]
        first = [sum(widths[1:depth]) for depth in range(1, len(widths))]
        own = [row.repeat_interleave(width) for width in widths[1:]]
        entries = [
            (self.start + ring.window + begin + torch.arange(width, device=device)).flatten()
            for begin, width in zip(first, widths[1:], strict=True)
        ]
        empty = row[:0]
        self.row = torch.cat([empty, *own])
        self.depth = torch.cat(
            [empty, *(row.new_full((n,), depth) for depth, n in enumerate(counts, 1))]
        )
        self.entries = torch.cat([empty, *entries]).split(counts) if counts else ()
        self.counts = counts
        # a mask of one column: all tokens of a level see all that the target has
        self.all = torch.ones(rows, max(widths), 1, dtype=torch.bool, device=device)
        nothing = torch.empty(1, PAGE_SIZE, 0, config.head_dim, dtype=compute.model.dtype)
        self.nothing = nothing.to(device), nothing.to(device)
        kv = 2 * config.num_kv_heads
        inner = config.num_heads * config.head_dim, config.intermediate_size
        heads = config.num_heads, config.num_heads + kv
        self.scratch = make_scratch(config.hidden_size, config.head_dim, heads, inner, device)

    def begin(self, batch: Batch) -> None:
        """What all levels of an iteration read; what the last one committed joins at depth 0."""
        longest = self.compute.model.max_len - 1
        positions = batch.lengths[:, None] + self.reach
        self.slots = (positions % self.ring.window + self.start).flatten()
        # before a text's beginning there is nothing: what stands for it is never read
        positions = positions.clamp(0, longest)
        self.tokens = batch.history.gather(1, positions).flatten()
        self.places = [positions.flatten()]
        self.last = batch.lengths.clamp(0, longest)
        if self.counts:
            below = (batch.lengths[self.row] + self.depth).clamp(max=longest)
            self.places += below.split(self.counts)
        running = batch.active.long()
        self.kv_lens = batch.lengths * running
        self.q_lens = {width: running * width for width in {*self.widths}}

    def hidden(self, batch: Batch, depth: int, tokens: Tensor, drafted: Tensor) -> Tensor:
        """What the LM head takes, `[R, n, hidden]`; arguments are those of `LongSpec.score`."""
        block, compute, ring = self.block, self.compute, self.ring
        config, (rows, width) = block.config, tokens.shape
        positions = self.places[depth]
        flat = tokens.reshape(-1).contiguous() if depth else self.tokens
        slots = self.entries[depth - 1] if depth else self.slots
        few = len(flat) <= compute.fusion.qkv
        stream = compute.begin(flat, block.self_norm if few else None)
        place = None, positions, slots, ring.pages, self.scratch
        q = compute.heads(stream, block.self_norm, block.qkv, block.qkv_bias, *place)
        q = q.view(rows, -1, config.num_heads, config.head_dim)
        if depth == 0:
            # of the tokens that joined the ring only the last is asked
            q, positions = q[:, -1:], self.last
            stream = Stream(stream.settled().view(rows, -1, config.hidden_size)[:, -1])
        seen = drafted if drafted.dim() == 3 else drafted[None]
        out = ring_attention(
            q, ring.keys, ring.values, batch.lengths, depth, seen, ring.window, self.scale
        )
        self._add(stream, out, block.o, None, block.cross_norm)
        place = None, positions, positions, self.nothing, self.scratch
        q = compute.heads(stream, block.cross_norm, block.cross_q, block.cross_q_bias, *place)
        out = compute.attend(
            compute.model.config.num_layers - 1,
            q.view(rows, width, config.num_heads, config.head_dim),
            batch.block_table,
            self.kv_lens,
            self.q_lens[width],
            self.scale,
            None if width == 1 else self.all[:, :width],
        )
        self._add(stream, out, block.cross_o, None, block.mlp_norm)
        gated = compute.gated(stream, block.mlp_norm, block.gate_up, block.gate_up_bias)
        self._add(stream, gated, block.down, block.down_bias, None)
        return stream.settled().view(rows, width, -1)

    def _add(
        self,
        stream: Stream,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm: Tensor | None,
    ) -> None:
        compute, fusion, n = self.compute, self.compute.fusion, len(stream.x)
        x = x.reshape(n, -1)
        if n <= fusion.o:
            norm = norm if n <= fusion.qkv else None
            compute.add(stream, x, weight, bias, norm, scratch=self.scratch)
        else:
            stream.add(compute.projection(x, weight, bias))
