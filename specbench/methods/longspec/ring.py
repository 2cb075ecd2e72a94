"""The draft's own keys and values: a ring of the last tokens, and room for drafts behind it."""

import torch
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE
from specbench.kernels.ring_attention.reference import visible


def ring_size(window: int, drafts: int) -> int:
    """Entries of a row: whole pages, so that what writes pages of a cache can write them."""
    return -(-(window + drafts) // PAGE_SIZE) * PAGE_SIZE


class Ring:
    """K and V of each row's last `window` committed tokens, and of the drafts that follow them.

    A committed token at position p lies at index ``p % window``; draft i at ``window + i``. The
    size depends on neither the context nor what was generated.

    Parameters
    ----------
    rows, window, drafts : int
    kv_heads, dim : int
    dtype, device
        Of the entries.

    Attributes
    ----------
    keys, values : Tensor
        `[R, S, Hkv, D]` with S of `ring_size`.
    """

    def __init__(
        self,
        rows: int,
        window: int,
        drafts: int,
        kv_heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = rows, ring_size(window, drafts), kv_heads, dim
        self.window = window
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = torch.arange(rows, device=device)[:, None]

    @property
    def pages(self) -> tuple[Tensor, Tensor]:
        """Keys and values as pages of a cache, in which a row's entries begin at `start`."""
        keys, values = (x.view(-1, PAGE_SIZE, *x.shape[2:]) for x in (self.keys, self.values))
        return keys, values

    def start(self, row: Tensor) -> Tensor:
        """The slot of entry 0 of rows."""
        return row * self.keys.shape[1]

    def commit(self, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store committed tokens; a negative position stores what nothing ever reads.

        Parameters
        ----------
        positions : Tensor
            int64 `[R, n]`, consecutive in a row, n at most `window`.
        keys, values : Tensor
            `[R, n, Hkv, D]`.
        """
        index = positions % self.window
        self.keys[self._rows, index] = keys
        self.values[self._rows, index] = values

    def commit_row(self, row: int, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """The same for one row: positions `[n]`, keys and values `[n, Hkv, D]`."""
        index = positions % self.window
        self.keys[row, index] = keys
        self.values[row, index] = values

    def draft(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Store the drafts from number `first` on, `[R, n, Hkv, D]`."""
        start = self.window + first
        self.keys[:, start : start + keys.shape[1]] = keys
        self.values[:, start : start + keys.shape[1]] = values

    def visible(self, last: Tensor, depth: int) -> Tensor:
        """Which committed entries, bool `[R, window]`, a query sees that stands `depth` tokens on.

        Parameters
        ----------
        last : Tensor
            int64 `[R]`, position of the last committed token.
        depth : int
            Less than `window`.
        """
        return visible(last, depth, self.window)
