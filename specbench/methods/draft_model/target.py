"""The target as a drafter over a working part of its own KV."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.methods.draft_model.drafter import Drafter
from specbench.methods.draft_model.loading import Reach

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class TargetDrafter(Drafter):
    """Entries are copied as they are, and drafts stand at their own positions.

    Nothing has to be prefilled or fed but the last committed token, since verification writes the
    KV of all others; the chunk of `catch_up` is that token alone.

    Parameters
    ----------
    engine : Engine
    working : int
        Entries of the working KV, drafts included.
    """

    def __init__(self, engine: "Engine", working: int) -> None:
        # without a prefill of its own there is nothing to look back on
        super().__init__(engine, engine.model, Reach(working, engine.max_len, 0, 0, 0))
        self.shift = torch.zeros_like(self.length)

    @staticmethod
    def working_bytes(config: "ModelConfig", rows: int, working: int, dtype: torch.dtype) -> int:
        """The working KV, and what a rebuild holds."""
        token = config.kv_bytes_per_token(dtype)
        slots = (rows * pages_for(working) + 1) * PAGE_SIZE
        return slots * token + 2 * rows * working * token // config.num_layers

    def again(self) -> None:
        """See `Drafter`; every committed entry could be gathered."""
        super().again()
        lengths = self.engine.batch.lengths
        self.filled.copy_(lengths)
        self.shift.copy_(lengths - self.length)

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        """Heads as they are: those of the cache, too, are rotated to their own positions."""
        return x

    def _full_cache(self) -> KVCache:
        return self.engine.cache

    def _rotary(self, position: Tensor) -> Tensor:
        return (position + self.shift[:, None]).clamp(0, self.engine.max_len - 1)
