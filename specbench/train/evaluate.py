"""Loss and accuracy of a draft on text that it was not trained on, at each lag and place."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.model import Transformer
from specbench.kernels.cross_entropy.reference import IGNORED
from specbench.methods.longspec.block import DraftBlock
from specbench.train.corpus import Corpus, cut
from specbench.train.objective import draft_loss, offset_positions, watch


@dataclass(frozen=True)
class Place:
    """Rows at some positions.

    Attributes
    ----------
    name : str
        ``near``: from position 0 on; ``far``: at the end of the target's context, but for the first
        four tokens; ``long``: the end of rows that are as long as the long stage's.
    tokens, labels : Tensor
        int64 `[B, L]`.
    offset : int
    """

    name: str
    tokens: Tensor
    labels: Tensor
    offset: int


@dataclass(frozen=True)
class Score:
    """What a draft reaches at one place, the target's KV `lag` tokens behind."""

    place: str
    lag: int
    loss: float
    accuracy: float


def places_of(corpus: Corpus, length: int, longest: int, context: int, tokens: int) -> list[Place]:
    """The places that the held-out text suffices for.

    Parameters
    ----------
    corpus : Corpus
    length : int
        Of a row.
    longest : int
        Of a row at the place ``long``, of which the last `length` tokens count.
    context : int
        Positions of the target.
    tokens : int
        In each place, at most, but one row at least.
    """

    def rows(size: int) -> tuple[Tensor, Tensor] | None:
        count = min((len(corpus.evaluation) - 1) // size, max(tokens // size, 1))
        if count < 1:
            return None
        # spread over the text, so that one document does not decide
        stride = (len(corpus.evaluation) - 1) // size / count
        chosen = [int(number * stride) for number in range(count)]
        found = cut(corpus.evaluation, corpus.separator, size, chosen)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    places: list[Place] = []
    if (short := rows(length)) is not None:
        places.append(Place("near", *short, 0))
        if context > length:
            places.append(Place("far", *short, context - length))
    if longest > length and (long := rows(longest)) is not None:
        long[1][:, :-length] = IGNORED
        places.append(Place("long", *long, 0))
    return places


@torch.no_grad()
def evaluate(
    target: Transformer, block: DraftBlock, places: list[Place], depth: int, micro_tokens: int
) -> Iterator[Score]:
    """Scores of every place at the lags 1 to `depth`, means over all labels that count."""
    device = block.o.device
    for place in places:
        step = max(1, micro_tokens // place.tokens.shape[1])
        totals = torch.zeros(depth, 2, dtype=torch.float64)
        counted = 0
        for begin in range(0, len(place.tokens), step):
            tokens = place.tokens[begin : begin + step].to(device)
            labels = place.labels[begin : begin + step].to(device)
            count = int((labels != IGNORED).sum())
            offsets = torch.full((len(tokens),), place.offset, device=device)
            seen = watch(target, tokens, offset_positions(offsets, tokens.shape[1]))
            for lag in range(1, depth + 1):
                loss, accuracy = draft_loss(target, block, tokens, labels, seen, lag)
                totals[lag - 1] += torch.stack([loss, accuracy]).double().cpu() * count
            counted += count
        for lag, (loss, accuracy) in enumerate((totals / max(counted, 1)).tolist(), 1):
            yield Score(place.name, lag, loss, accuracy)
