"""What a round of drafting starts from: the host's view of the batch that was just verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FIELDS = ("token", "ranked", "sampled", "seen", "votes", "last_only")
TOKEN, RANKED, SAMPLED, SEEN, VOTES, LAST_ONLY = range(len(FIELDS))

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """The batch of one forward, as vLLM's metadata describe it before it runs.

    Attributes
    ----------
    rows : array
        Query rows of each request, `[R]`, padding included as requests without rows.
    computed : array
        Tokens of each request whose KV was there before, `[R]`.
    prefilling : array
        bool `[R]`, whether some of its prompt was still to be computed.
    block_table : Tensor
        `[R', P]` on the device; stale past what a request has.
    """

    rows: Ints
    computed: Ints
    prefilling: NDArray[np.bool_]
    block_table: Tensor

    @property
    def longest(self) -> int:
        """Tokens of the longest request, drafts included."""
        return int((self.computed + self.rows).max(initial=0))

    @classmethod
    def of(cls, metadata: Any) -> "Step":
        """From vLLM's CommonAttentionMetadata."""
        starts = metadata.query_start_loc_cpu.numpy().astype(np.int64)
        rows = np.diff(starts)
        ends = metadata.seq_lens_cpu_upper_bound.numpy().astype(np.int64)
        flags = metadata.is_prefilling
        prefilling = np.zeros(len(rows), bool) if flags is None else flags.numpy().astype(bool)
        return cls(rows, ends[: len(rows)] - rows, prefilling, metadata.block_table_tensor)


def plan_round(
    sampled: Sequence[Sequence[int]],
    num_tokens: NDArray[Any],
    token_ids: NDArray[Any],
    step: Step,
) -> Ints:
    """What the device needs to know of each row of the batch.

    Parameters
    ----------
    sampled : sequence of sequences of int
        The new tokens of each request; none for a prompt that is not computed to its end.
    num_tokens, token_ids : array
        Tokens of each request, `[R']`, and which they are, `[R', max_len]`, the new ones included.
    step : Step

    Returns
    -------
    array
        int64 `[R, 6]`, by `FIELDS`:

        - token: the last one, whose KV is not there yet;
        - ranked: entries that the next drafts may choose from, n. They end with the verification's
          first row, or with the prompt;
        - sampled: new tokens, s; 0 for a request that gets no drafts. The last one stands at
          position n - 1 + s;
        - seen: entries that the last voting row sees;
        - votes: voting rows, 2 or 1;
        - last_only: 1 where the only vote is the last row's, not the first's.

    Notes
    -----
    A request whose first row was its last committed token is verified, and its first and last row
    vote, whether or not the last draft was accepted. Otherwise its rows are a prompt's, or those of
    a preempted request that is computed again, and the last one votes. A prompt's single token is
    padded by vLLM to a verification, with drafts that stand for nothing: there the first row votes.
    """
    count = len(sampled)
    planned = np.zeros((count, len(FIELDS)), np.int64)
    news = np.fromiter(map(len, sampled), np.int64, count)
    total = np.asarray(num_tokens[:count], np.int64)
    ranked, rows, computed = total - news, step.rows[:count], step.computed[:count]
    verified = computed == ranked - 1
    whole = computed + rows == ranked
    drafted = (news > 0) & (rows > 0) & (verified | whole)
    padded = verified & step.prefilling[:count]
    both = verified & ~padded & (rows > 1)
    planned[:, TOKEN] = token_ids[np.arange(count), np.maximum(total - 1, 0)]
    planned[:, RANKED] = ranked
    planned[:, SAMPLED] = news
    planned[:, SEEN] = np.where(both, computed + rows, ranked)
    planned[:, VOTES] = np.where(both, 2, 1)
    planned[:, LAST_ONLY] = ~verified
    planned[~drafted] = 0
    return planned
