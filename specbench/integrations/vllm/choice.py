"""Which of vLLM's KV entries the next drafts read: what choices share, and that by position."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specbench.engine.batch import slots_of
from specbench.integrations.vllm.rounds import RANKED, SAMPLED
from specbench.methods.magicdec.stream import StreamParameters
from specbench.methods.self_speculation import share_of
from specbench.methods.vegas import VegasParameters

Caches = list[tuple[Tensor, Tensor]]


class Choice(ABC):
    """The entries that drafts read, for `rows` requests of up to `max_len` tokens.

    Attributes
    ----------
    selected : Tensor
        int32 `[layers or 1, R, S, K]`, slots of vLLM's cache, -1 for none.
    width : int
        K.
    """

    selected: Tensor
    width: int

    def layer(self, index: int, rows: int) -> Tensor:
        """The sets `[rows, S, K]` that one layer reads."""
        return self.selected[min(index, len(self.selected) - 1), :rows]

    @abstractmethod
    def keep(self, planned: Tensor) -> Tensor:
        """Entries `[R]` that are kept, of `planned` `[R, 6]` (see `rounds`)."""

    @abstractmethod
    def tail_begin(self, planned: Tensor) -> Tensor:
        """The first entry `[R]` behind the ranked ones that drafts read beside the sets."""

    @abstractmethod
    def choose(self, planned: Tensor, votes: Tensor, caches: Caches, table: Tensor) -> None:
        """Write `selected` for the rows of `planned`.

        Parameters
        ----------
        planned : Tensor
            int64 `[R, 6]`.
        votes : Tensor
            `[layers, R, 2, H, D]`.
        caches : list of pairs
            Keys and values of each layer, `[blocks, block, Hkv, D]`.
        table : Tensor
            int64 or int32 `[R, P]`.
        """


class StreamChoice(Choice):
    """Sinks and a recent window by position (`methods.magicdec.stream.Stream`)."""

    def __init__(
        self, parameters: StreamParameters, rows: int, max_len: int, device: torch.device
    ) -> None:
        self.parameters = parameters
        self.width = widest(parameters, max_len)
        self.selected = torch.full((1, rows, 1, self.width), -1, dtype=torch.int32, device=device)
        self._index = torch.arange(self.width, device=device)

    def keep(self, planned: Tensor) -> Tensor:
        """See `Choice`; of all entries before the last token, accepted drafts included."""
        drafting = planned[:, SAMPLED] > 0
        committed = (planned[:, RANKED] - 1 + planned[:, SAMPLED]) * drafting
        return kept_of(self.parameters, committed)

    def tail_begin(self, planned: Tensor) -> Tensor:
        """See `Choice`: the last token, since the accepted drafts are among the sets."""
        return (planned[:, SAMPLED] - 1).clamp(min=0)

    def choose(self, planned: Tensor, votes: Tensor, caches: Caches, table: Tensor) -> None:
        """See `Choice`."""
        committed = planned[:, RANKED] - 1 + planned[:, SAMPLED]
        keep = self.keep(planned)[:, None]
        position = torch.where(
            self._index < self.parameters.sinks,
            self._index,
            self._index + committed[:, None] - keep,
        )
        chosen = self._index < keep
        slots = slots_of(table, position.clamp(min=0), caches[0][0].shape[1])
        self.selected[0, : len(planned), 0].copy_(torch.where(chosen, slots, -1))


def kept_of(parameters: VegasParameters | StreamParameters, length: Tensor) -> Tensor:
    """Entries kept of `length` ones, int64 of the same shape."""
    if parameters.kept_ratio is None:
        return length.clamp(max=parameters.budget)
    return share_of(length, parameters.kept_ratio, parameters.min_tokens)


def widest(parameters: VegasParameters | StreamParameters, max_len: int) -> int:
    """Most entries that a set holds."""
    return int(kept_of(parameters, torch.tensor(max_len)))
