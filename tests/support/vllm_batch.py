"""A batch as vLLM leaves it after a forward: queries, keys and values, a KV cache in its layout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.model import Transformer
from specbench.integrations.vllm.choice import Choice
from specbench.integrations.vllm.counters import Counters
from specbench.integrations.vllm.drafter import Drafter, drafting_compute
from specbench.integrations.vllm.hub import Hub
from specbench.integrations.vllm.layout import split_cache
from specbench.integrations.vllm.rounds import Step, plan_round

BLOCK = 16


@dataclass(frozen=True)
class Row:
    """One request of the batch.

    Attributes
    ----------
    text : list of int
        Tokens whose keys and values are in the cache, the batch's rows at their end.
    rows : int
        How many of them the forward computed.
    sampled : list of int
        The tokens that it gave; none for a prompt that is not at its end.
    prefilling : bool
    """

    text: list[int]
    rows: int
    sampled: list[int]
    prefilling: bool = False

    @property
    def committed(self) -> list[int]:
        """The request's tokens: what was rejected is none, nor what stands for nothing."""
        if self.prefilling or not self.sampled:
            return self.text + self.sampled
        return self.text[: len(self.text) - self.rows + 1] + self.sampled


class Watching:
    """Full causal attention of one request, whose queries, keys and values it keeps."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append((q[0], k[0], v[0]))
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)


def continued(model: Transformer, text: Sequence[int], count: int) -> list[int]:
    """Greedy decoding, everything computed anew for each token."""
    tokens = list(text)
    for _ in range(count):
        ids = torch.tensor([tokens], device=model.embed.device)
        hidden = model(ids, torch.arange(len(tokens), device=ids.device)[None], Watching())
        tokens.append(int(model.logits(hidden[0, -1]).argmax()))
    return tokens[len(text) :]


def split_layout(keys: Tensor, values: Tensor) -> Tensor:
    """vLLM 0.25's cache of keys and values `[blocks, block, Hkv, D]`."""
    return torch.stack([keys, values], 1)


def packed_layout(keys: Tensor, values: Tensor) -> Tensor:
    """That of 0.26 and later, whose keys and values alternate in memory."""
    return torch.cat([keys, values], -1).contiguous().transpose(1, 2)


def cpu_layout(keys: Tensor, values: Tensor) -> Tensor:
    """That of vLLM's CPU build."""
    blocks, block, heads, dim = keys.shape
    halves = keys.permute(0, 2, 3, 1).flatten(2), values.permute(0, 2, 1, 3).flatten(2)
    return torch.stack(halves, 2).view(blocks, heads, block, 2 * dim)


Layout = Callable[[Tensor, Tensor], Tensor]


def split_packed(cache: Tensor) -> tuple[Tensor, Tensor]:
    """What the adapter gives for `packed_layout` on a GPU; on a CPU it takes it for the CPU's."""
    keys, values = cache.transpose(1, 2).chunk(2, -1)
    return keys, values


def make_drafter(
    model: Transformer,
    batch: Sequence[Row],
    make_choice: Callable[[int, int, bool], Choice],
    gamma: int,
    layout: Layout = split_layout,
    kernels: bool = False,
    max_len: int = 128,
) -> Drafter:
    """A drafter that has seen `batch`; `make_choice` takes rows, max_len and kernels."""
    config, rows = model.config, len(batch) + 1
    shape = config.num_kv_heads, config.head_dim
    device = model.embed.device
    sizes = config, rows, gamma, max_len, model.dtype, device
    hub = Hub(*sizes, Counters(device), kernels)
    blocks_each = -(-max_len // BLOCK)
    order = torch.randperm(rows * blocks_each, generator=torch.Generator().manual_seed(3)) + 1
    table = order.view(rows, blocks_each).int().to(device)
    for r, row in enumerate(batch):
        # what a row does not have is stale: another's
        used = -(-len(row.text) // BLOCK)
        table[r, used:] = table[(r + 1) % rows, : blocks_each - used]
    seen = []
    for row in batch:
        watching, tokens = Watching(), torch.tensor([row.text], device=device)
        model(tokens, torch.arange(tokens.shape[1], device=device)[None], watching)
        seen.append(watching.layers)
    starts = torch.tensor([0, *(row.rows for row in batch), 0]).cumsum(0).int().to(device)
    caches = []
    for layer in range(config.num_layers):
        flat = [
            torch.cat([s[layer][i][-b.rows :] for s, b in zip(seen, batch, strict=True)])
            for i in range(3)
        ]
        hub.keep(layer, *flat, starts)
        keys, values = torch.full(
            (2, rows * blocks_each + 1, BLOCK, *shape), torch.nan, device=device
        )
        for r, row in enumerate(batch):
            at = torch.arange(len(row.text), device=device)
            place = table[r].long()[at // BLOCK], at % BLOCK
            keys[place], values[place] = seen[r][layer][1], seen[r][layer][2]
        cache = layout(keys, values)
        split = split_packed(cache) if layout is packed_layout else split_cache(cache, *shape)
        caches.append(split)
    drafter = Drafter(
        drafting_compute(model, hub.pool, kernels),
        hub,
        make_choice(rows, max_len, kernels),
        rows,
        max_len,
    )
    drafter.caches = caches
    drafter.see(table, rows)
    drafter.planned[: len(batch)] = torch.from_numpy(planned(batch, table))
    return drafter


def planned(batch: Sequence[Row], table: Tensor) -> Any:
    """The host's plan of the batch."""
    step = Step(
        np.array([row.rows for row in batch]),
        np.array([len(row.text) - row.rows for row in batch]),
        np.array([row.prefilling for row in batch]),
        table,
    )
    tokens = np.zeros((len(batch), 256), np.int32)
    for r, row in enumerate(batch):
        tokens[r, : len(row.committed)] = row.committed
    lengths = np.array([len(row.committed) for row in batch])
    return plan_round([row.sampled for row in batch], lengths, tokens, step)
