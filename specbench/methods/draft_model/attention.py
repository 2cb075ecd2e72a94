"""What a drafter's attention layers do: in its forwards, and in the prefill of its prompt."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE
from specbench.engine.rope import rotate
from specbench.kernels.paged_attention.reference import write_kv

if TYPE_CHECKING:
    from specbench.methods.draft_model.drafter import Drafter


class WorkingAttention:
    """Rotates, writes into the working KV, and attends over it.

    Parameters
    ----------
    drafter : Drafter
    position : Tensor
        int64 `[R, Q]`, of the tokens in the working KV.
    slots : Tensor
        int64 `[R, Q]`, of the working KV.
    kv_lens, q_lens : Tensor
        `[R]`, as `paged_attention` takes them.
    mask : Tensor or None
        bool `[R, Q, C]`, as `tree_attention` takes it; None is causal order.
    kept : Tensor or None
        int64 `[R, Q]`, slots of the full KV, which tokens are written to as they are.
    """

    def __init__(
        self,
        drafter: "Drafter",
        position: Tensor,
        slots: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        mask: Tensor | None,
        kept: Tensor | None,
    ) -> None:
        self.drafter, self.position, self.slots = drafter, position, slots
        self.kv_lens, self.q_lens, self.mask, self.kept = kv_lens, q_lens, mask, kept

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        drafter = self.drafter
        if self.kept is not None:
            keys, values = drafter.cache.layer(layer)
            write_kv(keys, k, self.kept)
            write_kv(values, v, self.kept)
        keys, values = drafter.working.layer(layer)
        write_kv(keys, drafter.turned(k, self.position), self.slots)
        write_kv(values, v, self.slots)
        turned = drafter.turned(q, self.position)
        place = drafter.table, self.kv_lens, self.q_lens
        return drafter.compute.attend(layer, turned, *place, drafter.scale, self.mask)


class PrefillAttention:
    """Causal attention of one request's chunk over what its prefill looks back on.

    Parameters
    ----------
    drafter : Drafter
    slots : Tensor
        int64 `[1, n]`, of the full KV: what is seen, the chunk last.
    """

    def __init__(self, drafter: "Drafter", slots: Tensor) -> None:
        self.drafter, self.slots = drafter, slots
        self.tables = drafter.tables(torch.arange(slots.shape[1], device=slots.device))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.drafter.cache.layer(layer)
        chunk, seen = q.shape[1], self.slots.shape[1]
        write_kv(keys, k, self.slots[:, seen - chunk :])
        write_kv(values, v, self.slots[:, seen - chunk :])
        page, offset = self.slots // PAGE_SIZE, self.slots % PAGE_SIZE
        last = tuple(table[seen - chunk :] for table in self.tables)
        visible = torch.ones(chunk, seen, dtype=torch.bool, device=q.device).tril(seen - chunk)
        return F.scaled_dot_product_attention(
            rotate(q, *last).transpose(1, 2),
            rotate(keys[page, offset], *self.tables).transpose(1, 2),
            values[page, offset].transpose(1, 2),
            attn_mask=visible,
            scale=self.drafter.scale,
            enable_gqa=True,
        ).transpose(1, 2)
