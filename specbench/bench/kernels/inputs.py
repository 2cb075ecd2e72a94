"""Random inputs of a case: caches with pages in random order, queries, selections."""

from typing import TYPE_CHECKING

from specbench.bench.kernels.cases import Case

if TYPE_CHECKING:
    from torch import Tensor

PAGE = 16


def pool(case: Case, device: str, seed: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Keys and values `[pages, 16, Hkv, D]` and a block table of pages in random order.

    Key and value of an entry stand side by side, as in the engine's cache.
    """
    import torch

    pages = -(-case.context // PAGE)
    shape = case.batch * pages, PAGE, case.kv_heads, 2 * case.dim
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(shape[0], generator=generator, device=device, dtype=torch.int32)
    keys, values = randn(shape, device, seed).split(case.dim, -1)
    return keys, values, order.view(-1, pages)


def selected(case: Case, table: "Tensor", device: str, seed: int) -> "Tensor":
    """Slots of random distinct positions in order, int32 `[R, Hkv, entries]`."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    chance = torch.rand(case.batch, case.kv_heads, case.context, generator=generator, device=device)
    position = chance.topk(case.entries, -1).indices.sort(-1).values
    pages = table.long()[:, None].expand(-1, case.kv_heads, -1).gather(2, position // PAGE)
    return (pages * PAGE + position % PAGE).int()


def randn(shape: tuple[int, ...], device: str, seed: int) -> "Tensor":
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
