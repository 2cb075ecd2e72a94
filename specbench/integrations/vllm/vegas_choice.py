"""Vegas's choice: the entries that the verification's first and last row weigh most."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.batch import slots_of_sets
from specbench.engine.model_config import ModelConfig
from specbench.integrations.vllm.choice import Caches, Choice, kept_of, widest
from specbench.integrations.vllm.memory import SCORE_BYTES
from specbench.integrations.vllm.rounds import LAST_ONLY, RANKED, SEEN, VOTES
from specbench.kernels.paged_attention.reference import Collect, collect_scores
from specbench.kernels.selection import reference
from specbench.methods.vegas import VegasParameters

if TYPE_CHECKING:
    from specbench.integrations.vllm.parallel import Ranks


class VegasChoice(Choice):
    """The best entries by the verification's first and last row (`methods.vegas.Vegas`).

    Parameters
    ----------
    parameters : VegasParameters
    shape : ModelConfig
        This rank's.
    rows, max_len : int
        Most requests of a batch, and tokens of one of them.
    dtype, device
        Of vLLM's cache.
    kernels : bool
        Use Triton's kernels, not plain torch.
    ranks : Ranks, optional
        Of a tensor-parallel group.
    """

    def __init__(
        self,
        parameters: VegasParameters,
        shape: ModelConfig,
        rows: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        kernels: bool,
        ranks: "Ranks | None" = None,
    ) -> None:
        self.parameters, self.shape, self.ranks = parameters, shape, ranks
        self.width = widest(parameters, max_len)
        assert parameters.score != "random"
        self.collect = Collect(parameters.score, parameters.queries, parameters.share)
        sets = shape.num_kv_heads if parameters.share == "head" else 1
        bytes_of_a_layer = 4 * rows * sets * max_len
        group = max(1, min(shape.num_layers, SCORE_BYTES // bytes_of_a_layer))
        self.scores = torch.full(
            (group, rows, sets, max_len), -torch.inf, dtype=torch.float32, device=device
        )
        self.selected = torch.full(
            (shape.num_layers, rows, sets, self.width), -1, dtype=torch.int32, device=device
        )
        self._columns = torch.arange(parameters.gamma + 1, device=device)
        self._kernels = None
        if kernels:
            from specbench.integrations.vllm.kernels import ScoringKernels

            self._kernels = ScoringKernels(self.scores, self.collect, shape, self.width, dtype)

    def keep(self, planned: Tensor) -> Tensor:
        """See `Choice`."""
        return kept_of(self.parameters, planned[:, RANKED])

    def tail_begin(self, planned: Tensor) -> Tensor:
        """See `Choice`: all that follows the ranked entries."""
        return torch.zeros_like(planned[:, RANKED])

    def choose(self, planned: Tensor, votes: Tensor, caches: Caches, table: Tensor) -> None:
        """See `Choice`."""
        rows, p = len(planned), self.parameters
        ranked, seen = (planned[:, i].contiguous() for i in (RANKED, SEEN))
        keep = self.keep(planned)
        # where one row votes it comes first
        alone = (planned[:, LAST_ONLY] == 1)[:, None, None, None]
        votes = torch.where(alone, votes[:, :, 1:], votes)
        voters = planned[:, VOTES].contiguous()
        if p.queries == "last":
            votes = torch.where((voters == 2)[:, None, None, None], votes[:, :, 1:], votes)
            voters = voters.clamp(max=1)
        # a row sees what was there before the drafts; the last one sees them too
        first = (seen[:, None] - len(self._columns) + self._columns) < ranked[:, None]
        mask = torch.stack([first, torch.ones_like(first)], 1)
        mask[:, 0] |= (seen == ranked)[:, None] | (p.queries == "last")
        group = len(self.scores)
        for begin in range(0, len(caches), group):
            layers = range(begin, min(begin + group, len(caches)))
            for at, layer in enumerate(layers):
                keys = caches[layer][0]
                place = keys, table, seen, voters, ranked, self.scores[at, :rows], mask
                self._score(votes[layer], *place)
            scores = self.scores[: len(layers), :rows]
            if self.ranks is not None and p.share == "layer":
                scores = self.ranks.sum(scores)
            out = self.selected[layers.start : layers.stop, :rows]
            self._select(scores, ranked, keep, table, caches[0][0].shape[1], out)

    def _score(
        self,
        votes: Tensor,
        keys: Tensor,
        table: Tensor,
        seen: Tensor,
        voters: Tensor,
        ranked: Tensor,
        scores: Tensor,
        mask: Tensor,
    ) -> None:
        """How much each ranked entry of a layer mattered to the votes `[R, 2, H, D]`."""
        scale = self.shape.head_dim**-0.5
        if self._kernels is not None:
            self._kernels.score(votes, keys, table, seen, voters, scale, mask, ranked, scores)
            return
        place = keys, table, seen, voters, ranked, scale
        collect_scores(votes, *place, self.collect, scores, tree_mask=mask)

    def _select(
        self, scores: Tensor, ranked: Tensor, keep: Tensor, table: Tensor, block: int, out: Tensor
    ) -> None:
        p = self.parameters
        forced = p.sinks, p.window
        if self._kernels is not None:
            self._kernels.select(scores, ranked, keep, *forced, table, block, out)
            return
        best = reference.select(scores, ranked, keep, self.width, *forced)
        out.copy_(slots_of_sets(table, best, block))
