"""Who chooses the KV of the next drafts: the last accepted token, two rows, or all."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.config import Queries, RunConfig
from specbench.engine.forward import FullAttention, ScoreCollector
from specbench.methods.vegas import Vegas

if TYPE_CHECKING:
    from specbench.engine.batch import Batch
    from specbench.engine.engine import Engine

LAST_ACCEPTED = "last accepted"


class LastAccepted(Vegas):
    """Vegas with the sets that the last accepted token alone would choose.

    Which token that is is known only after the verification, so its scores come from one more
    forward. The candidates are those of the other sources: the prefix up to the verification's
    first row.
    """

    capturable = False

    def collector(self, batch: "Batch") -> None:
        """Nothing: only the candidates are noted."""
        super().collector(batch)

    def observe(self, batch: "Batch") -> None:
        """Let the last accepted token rank the prefix."""
        assert self.collect is not None
        position = (batch.lengths - 1).clamp(min=0)
        token = batch.history.gather(1, position[:, None])[:, 0]
        collector = ScoreCollector(self.collect, self.scores, self.ranked)
        collect_row(self.engine, token, position, self.ranked > 0, collector)
        super().observe(batch)


def collect_row(
    engine: "Engine", tokens: Tensor, position: Tensor, valid: Tensor, collector: ScoreCollector
) -> None:
    """Scores of one token a row whose KV, and that of all before it, is in the cache.

    Parameters
    ----------
    engine : Engine
    tokens, position : Tensor
        int64 `[R]`.
    valid : Tensor
        bool `[R]`; the scores of the other rows stay as they are.
    collector : ScoreCollector

    Notes
    -----
    The cache is read only. In a half type the query differs by rounding from that of a verification
    of several rows.
    """
    batch = engine.batch
    position = position[:, None]
    attention = FullAttention(
        engine.cache,
        batch.block_table,
        batch.slots(position, torch.zeros_like(valid)[:, None]),
        (position[:, 0] + 1) * valid,
        valid.long(),
        engine.scale,
        collector,
        engine.phases,
    )
    engine.compute.hidden(tokens[:, None], engine.within(position), attention)


def sources(config: RunConfig) -> dict[str, Vegas]:
    """Vegas with each source of its sets, by the name that tables carry.

    Raises
    ------
    UsageError
        A setting out of Vegas's range.
    """
    return {
        LAST_ACCEPTED: _voting(LastAccepted, config, "last"),
        "first+last": _voting(Vegas, config, "first+last"),
        "all": _voting(Vegas, config, "all"),
    }


def _voting(kind: type[Vegas], config: RunConfig, queries: Queries) -> Vegas:
    return kind.from_config(config.model_copy(update={"queries": queries}))
