"""Attention of drafts at positions without gaps, as if what was left out had never been there."""

import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.rope import rotate
from specbench.kernels.paged_attention.reference import write_kv


class RelativeAttention:
    """Writes one token's KV and attends over sinks and a window that is moved up to them.

    Rotary attention depends on distances alone. Between a query and the window the positions
    without gaps leave them as they are; to the sinks they are shorter by what was left out. So it
    is the query that is turned back, for the sinks, and no key has to be rotated anew.

    Parameters
    ----------
    engine : Engine
    sinks, rest : Tensor
        int64 `[R, S]` and `[R, K]` slots, -1 for none; the token's own is among the rest.
    slots : Tensor
        int64 `[R, 1]`, where the token's KV goes; -1 for a row that does not draft.
    skipped : Tensor
        int64 `[R]`, entries left out between sinks and window.
    """

    def __init__(
        self, engine: Engine, sinks: Tensor, rest: Tensor, slots: Tensor, skipped: Tensor
    ) -> None:
        self.engine, self.slots, self.sinks = engine, slots, sinks.shape[1]
        read = torch.cat([sinks, rest], 1)
        size = engine.cache.keys.shape[2]
        self.present = read >= 0
        self.page, self.offset = read.clamp(min=0) // size, read.clamp(min=0) % size
        model = engine.model
        factor = model.cos[0, 0]
        turn = skipped.clamp(0, model.max_len - 1)[:, None]
        # backwards: the sine's sign is turned
        self.tables = model.cos[turn] / factor, -model.signed_sin[turn] / factor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.engine.cache.layer(layer)
        write_kv(keys, k, self.slots)
        write_kv(values, v, self.slots)
        compute = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows, _, heads, dim = q.shape
        # [R, Hkv, n, D]
        kept = keys[self.page, self.offset].to(compute).transpose(1, 2)
        read = values[self.page, self.offset].to(compute).transpose(1, 2)
        # an absent entry reads memory that nothing may have written
        read = read.masked_fill(~self.present[:, None, :, None], 0)

        def logits(query: Tensor, part: Tensor) -> Tensor:
            grouped = query.to(compute).view(rows, part.shape[1], -1, dim)
            return torch.matmul(grouped, part.transpose(-1, -2)) * self.engine.scale

        turned = logits(rotate(q, *self.tables), kept[:, :, : self.sinks])
        both = torch.cat([turned, logits(q, kept[:, :, self.sinks :])], -1)
        both = both.masked_fill(~self.present[:, None, None], -torch.inf)
        weights = torch.softmax(both, -1)
        # a row that does not draft has no softmax
        weights = weights.masked_fill(~self.present.any(-1)[:, None, None, None], 0)
        return torch.matmul(weights, read).reshape(rows, 1, heads, dim).to(q.dtype)
