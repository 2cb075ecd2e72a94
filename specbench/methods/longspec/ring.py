"""The draft's own keys and values: a ring of the last tokens, and room for drafts behind it."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
        `[R, window + drafts, Hkv, D]`.
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
        shape = rows, window + drafts, kv_heads, dim
        self.window = window
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = torch.arange(rows, device=device)[:, None]
        self._index = torch.arange(window, device=device)

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
        """Which committed entries a query sees that stands `depth` tokens after the last of them.

        Parameters
        ----------
        last : Tensor
            int64 `[R]`, position of the last committed token.
        depth : int
            Less than `window`.

        Returns
        -------
        Tensor
            bool `[R, window]`: the entries of the last `window` positions, the query's included.
        """
        held = last[:, None] - (last[:, None] - self._index) % self.window
        return (held >= 0) & (held > last[:, None] + depth - self.window)

    def attend(self, q: Tensor, committed: Tensor, drafted: Tensor, scale: float) -> Tensor:
        """Attention of queries over what they see.

        Parameters
        ----------
        q : Tensor
            `[R, n, H, D]`.
        committed : Tensor
            bool `[R, window]`, from `visible`; the same for all queries.
        drafted : Tensor
            bool `[n, m]` or `[R, n, m]`, which of the first m drafts each query sees.
        scale : float

        Returns
        -------
        Tensor
            `[R, n, H, D]`.
        """
        rows, count = q.shape[:2]
        size = self.window + drafted.shape[-1]
        drafted = drafted.expand(rows, count, -1)
        mask = torch.cat([committed[:, None].expand(-1, count, -1), drafted], -1)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            self.keys[:, :size].transpose(1, 2),
            self.values[:, :size].transpose(1, 2),
            attn_mask=mask[:, None],
            scale=scale,
            enable_gqa=True,
        )
        return out.transpose(1, 2)
