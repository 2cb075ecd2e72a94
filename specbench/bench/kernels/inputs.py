"""Random inputs of a case: caches with pages in random order, queries, selections, logits."""

from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.bench.kernels.cases import Case

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.engine.sampling import Sampling

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


def sampled(case: Case, device: str, seed: int) -> "tuple[Sampling, Tensor, Tensor]":
    """A sampling, logits `[R, V]` as a sure model has them, and numbers `[R, 1]`.

    Thirty tokens stand out, and the best of them out of those.
    """
    import torch

    from specbench.engine.sampling import Sampling

    generator = torch.Generator(device).manual_seed(seed)
    logits = 2.5 * randn((case.batch, case.entries), device, seed)
    shape = case.batch, min(30, case.entries)
    places = torch.randint(case.entries, shape, generator=generator, device=device)
    heights = 8 + 16 * torch.rand(shape, generator=generator, device=device)
    logits.scatter_(1, places, heights.to(logits.dtype))
    u = torch.rand((case.batch, 1), generator=generator, device=device, dtype=torch.float64)
    return Sampling(0.6, case.top_p, case.top_k), logits, u


def chains(
    case: Case, device: str, seed: int
) -> "tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]":
    """What `acceptance.accept_sampled` takes, of drafts that mostly stand."""
    import torch

    from specbench.engine.sampling import probabilities

    generator = torch.Generator(device).manual_seed(seed)
    gamma = case.rows - 1
    drawn, logits, _ = sampled(replace(case, batch=case.batch * case.rows), device, seed)
    p = probabilities(logits.float(), drawn).view(case.batch, case.rows, -1)
    noise = 0.3 * randn((case.batch * case.rows, case.entries), device, seed + 1)
    q = probabilities((logits + noise).float(), drawn).view_as(p)[:, :gamma].contiguous()
    tokens = q.flatten(0, 1).multinomial(1, generator=generator).view(case.batch, gamma)
    allowed = torch.full((case.batch,), gamma, device=device)
    u = torch.rand(
        (case.batch, 2 * gamma + 1), generator=generator, device=device, dtype=torch.float64
    )
    return p, tokens, q, allowed, u[:, :gamma].contiguous(), u[:, gamma:].contiguous()
