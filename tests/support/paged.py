"""A paged KV cache that holds known entries, and NaN everywhere else."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# a result's rounding, and the noise of sums in the compute type: relative and absolute
TOLERANCE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (2e-5, 1e-5),
    torch.bfloat16: (2**-8, 1e-5),
}
DTYPES = list(TOLERANCE)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal to the fp64 expectation as far as a kernel that stores `dtype` can be."""
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute)


@dataclass(frozen=True)
class Paged:
    """The entries of some requests, paged and dense.

    Attributes
    ----------
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]`; page 0, pages that nobody has and the unused end of each
        request's last page are NaN.
    block_table : Tensor
        int64 `[R, P]`, pages in random order; 0 past a request's last page.
    keys, values : list of Tensor
        `[n, Hkv, D]` of each request.
    """

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    keys: list[Tensor]
    values: list[Tensor]

    def slots(self, row: int, positions: Tensor) -> Tensor:
        """Cache slots of a request's positions, of the same shape."""
        size = self.k_cache.shape[1]
        return self.block_table[row][positions // size] * size + positions % size


def randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def paged(
    lengths: Sequence[int],
    kv_heads: int = 2,
    dim: int = 8,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    page_size: int = 16,
) -> Paged:
    """Requests of the given lengths with random entries, their pages shuffled."""
    counts = [-(-n // page_size) for n in lengths]
    pages = 1 + sum(counts) + 2
    shape = pages, page_size, kv_heads, dim
    k_cache = torch.full(shape, torch.nan, dtype=dtype)
    v_cache = torch.full(shape, torch.nan, dtype=dtype)
    block_table = torch.zeros(len(lengths), max(counts) + 1, dtype=torch.int64)
    order = torch.randperm(pages - 1, generator=torch.Generator().manual_seed(seed)) + 1
    keys, values = [], []
    for row, (length, own) in enumerate(zip(lengths, order[:-2].split(counts), strict=True)):
        block_table[row, : len(own)] = own
        position = torch.arange(length)
        page, offset = own[position // page_size], position % page_size
        keys.append(randn(seed * 1000 + 2 * row, length, kv_heads, dim, dtype=dtype))
        values.append(randn(seed * 1000 + 2 * row + 1, length, kv_heads, dim, dtype=dtype))
        k_cache[page, offset], v_cache[page, offset] = keys[row], values[row]
    return Paged(k_cache, v_cache, block_table, keys, values)


def interleaved(kv: Paged) -> Paged:
    """The same entries with keys and values in one allocation, `[pages, 2, page_size, Hkv, D]`."""
    both = torch.stack([kv.k_cache, kv.v_cache], dim=1)
    return Paged(both[:, 0], both[:, 1], kv.block_table, kv.keys, kv.values)


def head_major(kv: Paged) -> Paged:
    """The same entries in one allocation, `[pages, Hkv, page_size, 2 D]`."""
    both = torch.cat([kv.k_cache, kv.v_cache], dim=-1).transpose(1, 2).contiguous()
    keys, values = both.transpose(1, 2).chunk(2, dim=-1)
    return Paged(keys, values, kv.block_table, kv.keys, kv.values)
