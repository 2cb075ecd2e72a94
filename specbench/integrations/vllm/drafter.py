"""A round of drafting: choose, then gamma greedy steps over vLLM's weights and our own small KV."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.compute import Compute, make_compute
from specbench.engine.forward import CachedAttention
from specbench.engine.kv_cache import KVCache, pages_for
from specbench.engine.model import Transformer
from specbench.integrations.vllm.choice import Caches, Choice
from specbench.integrations.vllm.hub import Hub
from specbench.integrations.vllm.rounds import FIELDS, RANKED, SAMPLED, TOKEN
from specbench.kernels.sparse_attention import reference

if TYPE_CHECKING:
    from collections.abc import Callable


class DraftAttention(CachedAttention):
    """One token's attention over the chosen entries of vLLM's cache and the tail in the pool.

    Parameters
    ----------
    drafter : Drafter
    slots : Tensor
        int64 `[R, 1]`, where the token's KV goes in the pool; -1 for a row that does not draft.
    tail : Tensor
        int64 `[R, T]`, the pool's slots that it reads, its own among them; -1 for none.
    keep : Tensor
        int64 `[R]`, how many entries of its sets count.
    """

    def __init__(self, drafter: "Drafter", slots: Tensor, tail: Tensor, keep: Tensor) -> None:
        super().__init__(drafter.hub.pool, slots)
        self.drafter, self.tail, self.keep = drafter, tail, keep

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See `CachedAttention`."""
        return self.drafter.attend(layer, q, self.tail, self.keep)


class Drafter:
    """What a round reads and writes, at fixed places: it can be captured as a CUDA graph.

    Parameters
    ----------
    compute : Compute
        Forwards of vLLM's weights over the pool.
    hub : Hub
    choice : Choice
    rows, max_len : int
        Most requests of a batch, and tokens of one of them.

    Attributes
    ----------
    planned : Tensor
        int64 `[rows, 6]`, see `rounds.plan_round`.
    drafts : Tensor
        int64 `[rows, gamma]`; tokens without a meaning where nothing was planned.
    """

    def __init__(self, compute: Compute, hub: Hub, choice: Choice, rows: int, max_len: int) -> None:
        self.compute, self.hub, self.choice = compute, hub, choice
        self.gamma, self.max_len = hub.gamma, max_len
        device = hub.votes.device
        self.planned = torch.zeros(rows, len(FIELDS), dtype=torch.int64, device=device)
        # vLLM rounds the table's width up to 128 tokens
        width = pages_for(max_len + 128)
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.drafts = torch.zeros(rows, self.gamma, dtype=torch.int64, device=device)
        self.caches: Caches = []
        self._entry_slots = hub.entry_slots(rows)
        self._entry = torch.arange(2 * self.gamma, device=device)
        self._step = torch.arange(self.gamma, device=device)[:, None]
        self._attend = self._attend_by_reference
        if hub.kernels:
            self._attend = self._by_kernel(rows)

    def see(self, block_table: Tensor, rows: int) -> None:
        """Copy the batch's block table; what is stale in it is never followed."""
        width = min(block_table.shape[1], self.table.shape[1])
        self.table[:rows, :width].copy_(block_table[:rows, :width], non_blocking=True)

    def attend(self, layer: int, q: Tensor, tail: Tensor, keep: Tensor) -> Tensor:
        """Attention of `q` `[R, 1, H, D]` over a layer's sets and `tail` `[R, T]`."""
        selected = self.choice.layer(layer, len(q))
        return self._attend(layer, q, selected, tail, keep)

    def run(self, rows: int) -> Tensor:
        """Drafts `[rows, gamma]` of the first `rows` requests of `planned`."""
        planned = self.planned[:rows]
        self.choice.choose(planned, self.hub.votes[:, :rows], self.caches, self.table[:rows])
        ranked, sampled = planned[:, RANKED], planned[:, SAMPLED]
        active = sampled > 0
        # of all steps at once: `[gamma, R]`
        entry = self._step + sampled - 1
        positions = (entry + ranked).clamp(0, self.max_len - 1)
        slots = self._entry_slots[:rows]
        own = torch.where(active, slots.T.gather(0, entry.clamp(min=0)), -1)
        begin = self.choice.tail_begin(planned)[:, None]
        # `[gamma, R, T]`
        read = (self._entry >= begin) & (self._entry <= entry[..., None]) & active[:, None]
        tails = torch.where(read, slots, -1)
        keep = self.choice.keep(planned)
        token = planned[:, TOKEN, None]
        for step in range(self.gamma):
            attention = DraftAttention(self, own[step, :, None], tails[step], keep)
            token, _ = self.compute.best(token, positions[step, :, None], attention)
            self.drafts[:rows, step] = token[:, 0]
        return self.drafts[:rows]

    def _attend_by_reference(
        self, layer: int, q: Tensor, selected: Tensor, tail: Tensor, keep: Tensor
    ) -> Tensor:
        scale = self.compute.model.config.head_dim**-0.5
        pool = self.hub.pool.layer(layer)
        return reference.sparse_attention(
            q, *self.caches[layer], selected.long(), tail, scale, tail_caches=pool
        )

    def _by_kernel(self, rows: int) -> "Callable[..., Tensor]":
        from specbench.kernels.sparse_attention.triton import sparse_attention
        from specbench.kernels.sparse_attention.workspace import SparseAttentionWorkspace

        config, pool = self.compute.model.config, self.hub.pool
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        dtype, device = pool.keys.dtype, pool.keys.device
        workspace = SparseAttentionWorkspace(rows, *heads, dtype, device)
        scale = config.head_dim**-0.5

        def attend(layer: int, q: Tensor, selected: Tensor, tail: Tensor, keep: Tensor) -> Tensor:
            return sparse_attention(
                q,
                *self.caches[layer],
                selected,
                tail,
                scale,
                tail_caches=pool.layer(layer),
                counts=keep,
                workspace=workspace,
            )

        return attend


def drafting_compute(model: Transformer, pool: KVCache, kernels: bool) -> Compute:
    """Triton's kernels, or plain torch, over the pool."""
    return make_compute("triton" if kernels else "sdpa", model, pool)
