"""The paged KV cache and the book of its pages."""

import torch
from torch import Tensor

from specbench.engine.model_config import ModelConfig
from specbench.errors import OutOfMemoryError

PAGE_SIZE = 16


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` entries."""
    return -(-tokens // PAGE_SIZE)


class KVCache:
    """Keys and values of every layer in pages of 16 tokens.

    Parameters
    ----------
    config : ModelConfig
        Gives layers, KV heads and the head's width.
    num_pages : int
        Pages that requests can have. One more, page 0, belongs to nobody: masked writes land there.
    dtype, device
        Of the entries.

    Attributes
    ----------
    keys, values : Tensor
        `[layers, pages, 16, Hkv, D]`; kernels reach them through strides only. Key and value of
        an entry stand side by side: who reads scattered entries finds both in one place.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        heads, dim = config.num_kv_heads, config.head_dim
        shape = config.num_layers, num_pages + 1, PAGE_SIZE, heads, 2 * dim
        self.keys, self.values = torch.zeros(shape, dtype=dtype, device=device).split(dim, -1)
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._owned: set[int] = set()

    @property
    def free_pages(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    def allocate(self, tokens: int) -> list[int]:
        """Pages for `tokens` entries.

        Raises
        ------
        OutOfMemoryError
            Not enough free pages; nothing is taken.
        """
        count = pages_for(tokens)
        if count > len(self._free):
            raise OutOfMemoryError(
                f"a request of {tokens} tokens needs {count} KV pages, {len(self._free)} of "
                f"{self.num_pages} are free: use a smaller batch or context"
            )
        pages = [self._free.pop() for _ in range(count)]
        self._owned.update(pages)
        return pages

    def free(self, pages: list[int]) -> None:
        """Give pages back.

        Raises
        ------
        ValueError
            A page that is not in use, or one that is named twice; nothing is given back.
        """
        if len(set(pages)) != len(pages) or not self._owned.issuperset(pages):
            raise ValueError(f"pages {pages} are not all in use")
        self._owned.difference_update(pages)
        self._free.extend(reversed(pages))

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every page is either free or owned, once."""
        if len(set(self._free)) != len(self._free) or self._owned.intersection(self._free):
            raise RuntimeError("a KV page is listed twice")
        if len(self._free) + len(self._owned) != self.num_pages:
            raise RuntimeError("a KV page is lost")

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each `[pages, 16, Hkv, D]`."""
        return self.keys[index], self.values[index]
