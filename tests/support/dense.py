"""What a whole forward saw, and which positions cache slots stand for."""

import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer


def keys_and_queries(engine: Engine, tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Each layer's keys `[n, Hkv, D]` and queries `[n, H, D]` over a whole sequence."""
    seen: list[tuple[Tensor, Tensor]] = []

    def dense(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append((k[0], q[0]))
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        ).transpose(1, 2)

    positions = torch.arange(len(tokens))[None]
    engine.model(torch.tensor(tokens)[None], positions, dense)
    return seen


def dense_logits(model: Transformer, tokens: list[int]) -> Tensor:
    """Logits `[n, V]` after each token of a sequence, without a cache."""

    def dense(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(
            *heads, is_causal=True, enable_gqa=True
        )
        return attended.transpose(1, 2)

    positions = torch.arange(len(tokens))[None]
    return model.logits(model(torch.tensor(tokens)[None], positions, dense))[0]


def positions_of(engine: Engine, row: int, slots: list[int]) -> set[int]:
    """The positions of a row that slots stand for, -1 left out."""
    table = engine.batch.block_table[row].tolist()
    page = {number: place for place, number in enumerate(table) if number}
    return {page[slot // 16] * 16 + slot % 16 for slot in slots if slot >= 0}
