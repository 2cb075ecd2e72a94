"""LongSpec's trees with much of the target's own continuation among their nodes."""

import random
from collections.abc import Mapping, Sequence

from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.engine.sampling import Sampling
from specbench.methods.longspec.tree_method import LongSpecTreeParameters
from tests.support.tiny import GREEDY, RandomTree, autoregressive, decode


class InformedTree(RandomTree):
    """The random block, but what follows in `known` is mostly among the best of every level.

    Among them, it is at a random place. What the block itself said is kept in `said`.
    """

    capturable = False

    def __init__(self, shape: tuple[int, ...], known: Mapping[int, Sequence[int]]) -> None:
        super().__init__(LongSpecTreeParameters(draft_weights="dummy", tree_shape=shape))
        self.known = known
        self.said: list[Tensor] = []

    def score(self, batch: Batch, depth: int, tokens: Tensor, drafted: Tensor) -> Tensor:
        """See `LongSpec`."""
        logits = super().score(batch, depth, tokens, drafted)
        self.said.append(logits)
        told = logits.clone()
        for row, request in enumerate(batch.request.tolist()):
            place = int(batch.lengths[row]) + 1 + depth
            ahead = self.known.get(request, ())[place : place + 1]
            chance = random.Random(f"{request} {place}")
            if len(ahead) and chance.random() < 0.9:
                best = logits[row].amax(-1)
                told[row, :, ahead[0]] = best + chance.uniform(-2, 1)
        return told


def informed(
    model: Transformer,
    shape: tuple[int, ...],
    token_ids: Mapping[int, list[int]],
    new: int | Sequence[int],
    sampling: Sampling = GREEDY,
    window: int = 8,
    max_len: int = 120,
) -> tuple[InformedTree, dict[int, list[int]]]:
    """The method, and what autoregressive decoding writes after each of `token_ids`."""
    engine = Engine(model, rows=len(token_ids), max_len=max_len)
    prompts, indices = list(token_ids.values()), list(token_ids)
    base = decode(engine, autoregressive(), prompts, new, sampling, indices)
    outputs = {index: outcome.output_ids for index, outcome in base.items()}
    method = InformedTree(shape, {i: [*token_ids[i], *outputs[i]] for i in outputs})
    method.window = window
    return method, outputs
