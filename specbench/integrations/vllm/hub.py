"""Where the attention backend and the proposer meet: one object, known to every layer."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE, KVCache, pages_for
from specbench.engine.model_config import ModelConfig
from specbench.integrations.vllm.counters import Counters
from specbench.integrations.vllm.rounds import Step
from specbench.kernels.verified_rows import reference

if TYPE_CHECKING:
    from collections.abc import Callable


class Hub:
    """What the forward leaves for the drafter.

    Parameters
    ----------
    shape : ModelConfig
        This rank's.
    rows : int
        Most requests of a batch.
    gamma : int
        Drafts of a round.
    max_len : int
        Most tokens of a request.
    dtype, device
        Of queries, keys and values.
    counters : Counters
    kernels : bool
        Use Triton's kernels, not plain torch.

    Attributes
    ----------
    votes : Tensor
        `[layers, R, 2, H, D]`, the first and the last query of each request.
    pool : KVCache
        Keys and values of what lies behind the ranked entries: a verification's rows after the
        first, then the drafts' own, `2 * gamma` of a request. vLLM reserves no slots for drafts,
        and this plug-in writes to none of vLLM's.
    step : Step or None
        The batch that was verified last, until the drafter has seen it.
    """

    def __init__(
        self,
        shape: ModelConfig,
        rows: int,
        gamma: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        counters: Counters,
        kernels: bool,
    ) -> None:
        self.kernels = kernels
        self.gamma, self.max_len, self.counters = gamma, max_len, counters
        heads = shape.num_heads, shape.head_dim
        self.votes = torch.zeros(shape.num_layers, rows, 2, *heads, dtype=dtype, device=device)
        self.pages_of_a_row = pages_for(2 * gamma)
        self.pool = KVCache(shape, rows * self.pages_of_a_row, dtype, device)
        self.step: Step | None = None
        self._keep_rows: Callable[..., None] = reference.keep_rows
        if kernels:
            from specbench.kernels.verified_rows.triton import keep_rows

            self._keep_rows = keep_rows
        # [layers, R, entries, Hkv, D]
        shaped = rows, self.pages_of_a_row * PAGE_SIZE
        self._keys, self._values = (
            x[:, 1:].flatten(1, 2).unflatten(1, shaped)[:, :, :gamma]
            for x in (self.pool.keys, self.pool.values)
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.votes.nbytes + self.pool.keys.nbytes + self.pool.values.nbytes

    def entry_slots(self, rows: int) -> Tensor:
        """The pool's slots `[rows, 2 * gamma]` of the entries behind the ranked ones."""
        device = self.votes.device
        row = torch.arange(rows, device=device)[:, None]
        first = (1 + row * self.pages_of_a_row) * PAGE_SIZE
        return first + torch.arange(2 * self.gamma, device=device)

    def begin(self, metadata: Any) -> None:
        """A forward is about to run over the batch that `metadata` describe."""
        # batches that vLLM only warms up or captures with are nobody's
        left, serving = self.step, self.counters.rounds > 0
        if serving and left is not None and left.longest + self.gamma > self.max_len:
            self.counters.skip()
        # batches that vLLM makes up have no lengths on the host
        known = metadata.seq_lens_cpu_upper_bound is not None
        self.step = Step.of(metadata) if known else None

    def take(self) -> Step | None:
        """The batch that was verified, once."""
        step, self.step = self.step, None
        return step

    def keep(self, layer: int, query: Tensor, key: Tensor, value: Tensor, starts: Tensor) -> None:
        """Keep what the drafter needs of one layer's rows; part of vLLM's graph, where it has one.

        Arguments as for `kernels.verified_rows`.
        """
        self._keep_rows(
            query, key, value, starts, self.votes[layer], self._keys[layer], self._values[layer]
        )
