"""A prompt through the model, chunk by chunk: to begin a request, or to judge an output."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.batch import slots_of
from specbench.engine.forward import FullAttention

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.methods.base import EngineMethod

# logits of a whole chunk over a large vocabulary would be the largest tensor of a run
_SCORED_ROWS = 64


def prefill(
    engine: "Engine",
    row: int,
    token_ids: list[int],
    start: int,
    method: "EngineMethod | None" = None,
) -> Iterator[Tensor]:
    """Hidden states `[1, n, hidden]` from `start` on, chunk by chunk; KV into `row`'s pages.

    `method` collects the scores that it wants of each chunk.
    """
    table = engine.batch.block_table[row : row + 1]
    ids = torch.tensor(token_ids, device=engine.device)[None]
    for begin in range(start, len(token_ids), engine.prefill_chunk):
        tokens = ids[:, begin : begin + engine.prefill_chunk]
        end = begin + tokens.shape[1]
        positions = torch.arange(begin, end, device=engine.device)[None]
        collector = None
        if method is not None:
            collector = method.prefill_collector(row, begin, end, len(token_ids))
        attention = FullAttention(
            engine.cache,
            table,
            slots_of(table, positions),
            torch.tensor([end], device=engine.device),
            torch.tensor([end - begin], device=engine.device),
            engine.scale,
            collector,
            engine.phases,
            length=end,
        )
        yield engine.compute.hidden(tokens, positions, attention)


@torch.inference_mode()
def score(
    engine: "Engine", prompt: list[int], output: list[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The target's logits of `output` after `prompt`, teacher-forced, a chunk at a time.

    Yields
    ------
    logits : Tensor
        `[n, V]`, what the target says where it sees everything before a token.
    tokens : Tensor
        int64 `[n]`, those tokens of `output`.
    """
    ids = prompt + output[:-1]
    following = torch.tensor(prompt[1:] + output, device=engine.device)
    engine.batch.reserve(0, engine.pages.reserve(0, prompt, len(prompt) - 1, len(ids)))
    begin = engine.pages.reused(0)
    try:
        for hidden in prefill(engine, 0, ids, begin):
            end = begin + hidden.shape[1]
            first = max(begin, len(prompt) - 1)
            for at in range(first, end, _SCORED_ROWS):
                stop = min(at + _SCORED_ROWS, end)
                logits = engine.compute.logits(hidden[0, at - begin : stop - begin])
                # a half type's differences are too coarse to judge by
                wide = torch.promote_types(logits.dtype, torch.float32)
                yield logits.to(wide), following[at:stop]
            begin = end
    finally:
        engine.release(0)
