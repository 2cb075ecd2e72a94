"""Which chunks of a request its drafts read: scored by the target, per request, on the device."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.config import Collecting
from specbench.engine.batch import Batch
from specbench.engine.forward import FullAttention, Tap, TreeAttention
from specbench.kernels.selection.reference import select

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class Retrieval:
    """Scores, and the chunks that they choose.

    Parameters
    ----------
    engine : Engine
        The target's.
    chunk, interval : int
        Tokens of a chunk; verifications between two choices of a request.
    collect : {"cheap", "full"}
        Score the deepest accepted row, or weigh all rows and keep that one's.
    keep : callable
        Chunks to keep of so many entries, `[R]`.
    width : int
        Most chunks that `keep` says.

    Attributes
    ----------
    chunks : Tensor
        int64 `[R, K]`, the chosen chunks, -1 for none, in no order.
    scored : Tensor
        int64 `[R]`, entries among which they were chosen; what comes after them is read anyway.
    """

    def __init__(
        self,
        engine: "Engine",
        chunk: int,
        interval: int,
        collect: Collecting,
        keep: Callable[[Tensor], Tensor],
        width: int,
    ) -> None:
        rows, device = engine.batch.rows, engine.device
        self.engine, self.chunk, self.interval, self.keep = engine, chunk, interval, keep
        self.full = collect == "full"
        self.layer = engine.config.num_layers - 1
        count = -(-engine.max_len // chunk)
        self.position = torch.arange(count * chunk, device=device)
        self.scores = torch.zeros(rows, 1, count * chunk, device=device)
        self.scored = torch.zeros(rows, dtype=torch.int64, device=device)
        self.steps = torch.zeros(rows, dtype=torch.int64, device=device)
        self.chunks = torch.full((rows, width), -1, device=device)

    @staticmethod
    def memory_bytes(
        collect: Collecting, model: "ModelConfig", rows: int, verified: int, max_len: int
    ) -> int:
        """Most bytes held, with `verified` rows a verification."""
        # float32 scores and their masked copy, masks, counts; int64 positions
        held = rows * max_len * 4 * 4 + max_len * 8
        if collect == "cheap":
            # of every head: weights in float32 at most, before they are summed
            return held + rows * model.num_heads * max_len * 4
        weights = verified * (max_len + verified) * 4
        # of all rows; of one request and all heads: logits, masked, normalised; keys of a request
        keys = 2 * max_len * model.num_kv_heads * model.head_dim * 4
        return held + rows * weights + 4 * model.num_heads * weights + keys

    def admit(self, row: int, batch: Batch) -> None:
        """Begin a request with its last chunks."""
        one = slice(row, row + 1)
        self.steps[one] = 0
        self.scored[one] = batch.lengths[one]
        self.scores[one] = self.position.float()
        self.choose(one)

    def watch(self, batch: Batch) -> Tap:
        """What the next verification has to call."""
        self.due = (self.steps % self.interval == 0) & batch.active
        return self._keep_weights if self.full else self._keep_queries

    def observe(self, batch: Batch) -> None:
        """Score and choose for the requests whose turn it is, and count the step."""
        due = self.due & batch.active
        # the deepest accepted row stands at the last entry
        lengths = batch.lengths * due
        if self.full:
            self._read_weights(batch, due)
        else:
            query = self.queries[torch.arange(batch.rows, device=due.device), batch.deepest]
            self.engine.compute.weigh(
                self.layer,
                query[:, None],
                batch.block_table,
                lengths,
                due.long(),
                self.engine.scale,
                self.scores,
            )
        self.scored.copy_(torch.where(due, batch.lengths, self.scored))
        self.steps += batch.active
        self.choose(slice(None))

    def choose(self, rows: slice) -> None:
        """The best chunks by mean score; of unchanged scores, those that were chosen before."""
        scored = self.scored[rows]
        counted = self.position < scored[:, None]
        sums = torch.where(counted, self.scores[rows, 0], 0).unflatten(1, (-1, self.chunk)).sum(-1)
        sizes = counted.unflatten(1, (-1, self.chunk)).sum(-1).clamp(min=1)
        means = (sums / sizes)[None, :, None]
        width = self.chunks.shape[1]
        count = (scored + self.chunk - 1) // self.chunk
        keep = self.keep(scored).clamp(max=width)
        self.chunks[rows] = select(means, count, keep, width)[0, :, 0]

    def entries(self) -> tuple[Tensor, Tensor]:
        """Positions `[R, K chunk]` of the chosen chunks, and which of them count."""
        offset = torch.arange(self.chunk, device=self.chunks.device)
        position = (self.chunks[..., None] * self.chunk + offset).flatten(1)
        return position, (position >= 0) & (position < self.scored[:, None])

    def kept(self, filled: Tensor) -> Tensor:
        """Of the first `filled` `[R]` entries, those that drafts read, bool `[R, L]`."""
        count = len(self.position) // self.chunk
        chosen = torch.where(self.chunks >= 0, self.chunks, count)
        marked = torch.zeros(len(chosen), count + 1, dtype=torch.bool, device=chosen.device)
        marked.scatter_(1, chosen, torch.ones_like(chosen, dtype=torch.bool))
        read = marked[:, :count].repeat_interleave(self.chunk, 1)
        return (read | (self.position >= self.scored[:, None])) & (self.position < filled[:, None])

    def _keep_queries(self, layer: int, q: Tensor, attention: FullAttention) -> None:
        if layer == self.layer:
            self.queries = q

    def _keep_weights(self, layer: int, q: Tensor, attention: FullAttention) -> None:
        if layer != self.layer:
            return
        self.mask = attention.mask if isinstance(attention, TreeAttention) else None
        room = self.engine.max_len + self.engine.spare
        # where it is not written it is not read
        self.weights = torch.empty(*q.shape[:2], room, device=q.device)
        self.engine.compute.row_weights(
            layer,
            q,
            attention.block_table,
            attention.kv_lens * self.due,
            attention.q_lens * self.due,
            self.mask,
            attention.scale,
            self.weights,
        )

    def _read_weights(self, batch: Batch, due: Tensor) -> None:
        """The deepest accepted row's weights, by the positions that entries have after commit."""
        row = torch.arange(batch.rows, device=due.device)
        weights = self.weights[row, batch.deepest]
        if self.mask is not None:
            # of the tree it sees its ancestors alone, which follow each other in its columns
            seen = self.mask[row, batch.deepest].long()
            root = batch.lengths - seen.sum(1)
            column = root[:, None] + torch.arange(seen.shape[1], device=due.device)
            column = column.clamp(0, weights.shape[1] - 1)
            own = weights.gather(1, column) * seen
            place = (root[:, None] + seen.cumsum(1) - 1).clamp(0, weights.shape[1] - 1)
            weights = weights.scatter(1, column, 0).scatter_add(1, place, own)
        width = self.scores.shape[2]
        fitted = torch.nn.functional.pad(weights, (0, max(0, width - weights.shape[1])))
        self.scores.copy_(torch.where(due[:, None, None], fitted[:, None, :width], self.scores))
