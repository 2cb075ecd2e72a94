"""Vegas: the verification's own attention tells which KV entries the next drafts read."""

from typing import TYPE_CHECKING, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specbench.config import Normaliser, Queries, Score, Share
from specbench.engine.batch import Batch
from specbench.engine.forward import ScoreCollector
from specbench.engine.random import Purpose, uniform
from specbench.kernels.paged_attention.reference import Collect
from specbench.methods.base import Draft, EngineMethod, Parameters
from specbench.methods.self_speculation import TUNABLE, draft_sparsely, share_of

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig


class VegasParameters(Parameters):
    """Settings of Vegas."""

    gamma: int = Field(8, ge=0, le=64, description="Draft tokens a step.")
    kept_ratio: float = Field(0.05, gt=0, le=1, description="Share of the prefix that drafts read.")
    min_tokens: int = Field(64, ge=1, description="Fewest entries of the prefix that drafts read.")
    score: Score = Field(
        "weight",
        description="Rank by softmax weights (the release), logits (the paper), or at random.",
    )
    queries: Queries = Field(
        "all",
        description="Verify rows whose scores are summed; first+last is the paper's.",
    )
    share: Share = Field("head", description="One set a KV head, or one a layer.")
    normaliser: Normaliser = Field(
        "draft",
        description="Divide weights by their own sum, or by one that is known before the pass: of "
        "the same tokens' draft steps, or of the verification before.",
    )
    sinks: int = Field(0, ge=0, description="First tokens that are always kept.")
    window: int = Field(0, ge=0, description="Last ranked tokens that are always kept.")

    @model_validator(mode="before")
    @classmethod
    def _others_have_no_sum(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("score", "weight") != "weight":
            return {"normaliser": "exact"} | values
        return values

    @model_validator(mode="after")
    def _only_weights_are_divided(self) -> Self:
        if self.normaliser != "exact" and self.score != "weight":
            raise ValueError(
                f"normaliser {self.normaliser} is of the score weight; {self.score} has none: "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _forced_entries_fit(self) -> Self:
        if self.sinks + self.window > self.min_tokens:
            raise ValueError(
                f"sinks + window ({self.sinks} + {self.window}) exceed min_tokens "
                f"({self.min_tokens}): raise min_tokens, so that every set can hold them"
            )
        return self


class Vegas(EngineMethod):
    """Self-speculation with verification-guided sparse attention.

    The target drafts for itself, each layer reading the best ``ceil(kept_ratio * n)`` of the n
    ranked entries and every token after them. The ranking comes from the scores that the last
    verification (at first, the prefill) computed anyway. The prefix up to the verification's first
    row is ranked, and every row of the chunk votes, whether or not its draft was accepted; the
    paper lets the first and the last (Collect-2-Query, `queries` "first+last").

    Source: Yue, Huang, Xue, "Vegas", arXiv 2602.07223.
    """

    name = "vegas"
    summary = "self-speculation; verification's attention picks the KV that drafts read"
    paper = "arXiv 2602.07223"
    parameters_type = VegasParameters
    tunable = TUNABLE
    drafts_with_target = True
    parameters: VegasParameters

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most."""
        return self.parameters.gamma

    def entries_read(self, length: int) -> int:
        """Of a prefix of `length` entries."""
        return int(self._keep(torch.tensor(length)))

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Scores and selected slots, and what ranking holds beside them for a moment."""
        p, sets = self.parameters, self._sets(model)
        width = int(self._keep(torch.tensor(max_len)))
        # scores and their masked copy; with forced entries, or drawn at random, more copies
        entry = _score_type(dtype, p.score).itemsize * (2 + (p.sinks + p.window > 0))
        entry += 4 * 24 * (p.score == "random")
        # int64 slots, as torch makes them; then best values, indices, masked indices and the slots'
        # parts
        chosen = 8 + 4 + 7 * 8
        norms = model.num_layers * rows * (self._voters() + p.gamma) * model.num_heads * 4
        lookup = 3 * 8 * (max_len + 1)
        return model.num_layers * rows * sets * (entry * max_len + chosen * width) + norms + lookup

    def bind(self, engine: "Engine") -> None:
        """Allocate scores `[layers, R, S, L]` and selected slots `[layers, R, S, K]`."""
        super().bind(engine)
        p, config = self.parameters, engine.config
        self.collect = None if p.score == "random" else Collect(p.score, p.queries, p.share)
        self.width = int(self._keep(torch.tensor(engine.max_len)))
        shape = config.num_layers, engine.batch.rows, self._sets(config)
        self.scores = torch.full(
            (*shape, engine.max_len),
            -torch.inf,
            dtype=_score_type(engine.model.dtype, p.score),
            device=engine.device,
        )
        self.selected = torch.full(
            (*shape, self.width), -1, dtype=torch.int32, device=engine.device
        )
        self.norm = self.lse = None
        if p.normaliser != "exact":
            norms = config.num_layers, engine.batch.rows, self._voters(), config.num_heads
            self.norm = torch.zeros(norms, device=engine.device)
        if p.normaliser == "draft":
            steps = config.num_layers, engine.batch.rows, self.gamma, config.num_heads
            self.lse = torch.zeros(steps, device=engine.device)
        self.ranked = torch.zeros(engine.batch.rows, dtype=torch.int64, device=engine.device)
        # behind the ranked prefix: what the last verification committed, and the drafts
        self.behind = torch.arange(2 * self.gamma + 1, device=engine.device)
        # of each length: one launch to look up, six to compute
        self.kept = self._keep(torch.arange(engine.max_len + 1, device=engine.device))

    def draft(self, batch: Batch) -> Draft | None:
        """Gamma tokens, one sparse forward each, their KV at lookahead positions of the cache."""
        if self.gamma == 0:
            return None
        engine = self.engine
        lse = None if engine.frozen else self.lse
        reach = self.ranked[:, None] + self.behind
        draft = draft_sparsely(engine, self.gamma, self.selected, reach, lse)
        if lse is not None:
            assert self.norm is not None
            with engine.phases("selection"):
                engine.compute.sums_of_voters(batch, self.parameters.queries, lse, self.norm)
        return draft

    def collector(self, batch: Batch) -> ScoreCollector | None:
        """Scores of the prefix up to the verification's first row."""
        if self.gamma == 0:
            return None
        torch.mul(batch.lengths + 1, batch.active, out=self.ranked)
        if self.collect is None:
            return None
        return ScoreCollector(self.collect, self.scores, self.ranked, self.norm)

    def prefill_collector(
        self, row: int, begin: int, end: int, length: int
    ) -> ScoreCollector | None:
        """Scores of the whole prompt from its last token."""
        if self.gamma == 0 or self.collect is None or end < length:
            return None
        collect = Collect(self.collect.score, "last", self.collect.share)
        ranked = torch.tensor([length], device=self.ranked.device)
        one = slice(row, row + 1)
        norm = None if self.norm is None else self.norm[:, one]
        return ScoreCollector(collect, self.scores[:, one], ranked, norm)

    def admit(self, row: int, batch: Batch) -> None:
        """First selection, from the prefill's last row."""
        if self.gamma == 0:
            return
        self.ranked[row] = batch.lengths[row]
        self._choose(batch, slice(row, row + 1))

    def observe(self, batch: Batch) -> None:
        """Rank every row's prefix and keep the best."""
        if self.gamma > 0:
            self._choose(batch, slice(None))

    def _choose(self, batch: Batch, rows: slice) -> None:
        p, ranked = self.parameters, self.ranked[rows]
        if self.collect is None:
            self._score_at_random(batch, rows)
        self.engine.compute.select_slots(
            self.scores[:, rows],
            ranked,
            self.kept[ranked],
            batch,
            rows,
            self.selected[:, rows],
            p.sinks,
            p.window,
        )

    def _score_at_random(self, batch: Batch, rows: slice) -> None:
        """The control: sets of the same size that nothing was learnt for."""
        layers, requests, sets, length = self.scores[:, rows].shape
        offset = torch.arange(layers * sets * length, device=self.scores.device)
        numbers = uniform(
            self.engine.sampling.seed,
            batch.request[rows, None],
            batch.lengths[rows, None],
            offset,
            Purpose.SELECT,
        )
        shaped = numbers.view(requests, layers, sets, length).transpose(0, 1)
        self.scores[:, rows] = shaped.to(self.scores.dtype)

    def _voters(self) -> int:
        """Rows of a verification whose scores are summed, at most."""
        return {"first+last": 2, "last": 1, "all": self.gamma + 1}[self.parameters.queries]

    def _sets(self, model: "ModelConfig") -> int:
        return model.num_kv_heads if self.parameters.share == "head" else 1

    def _keep(self, ranked: Tensor) -> Tensor:
        """Entries kept of `ranked` ones, int64 of the same shape."""
        p = self.parameters
        return share_of(ranked, p.kept_ratio, p.min_tokens)


def _score_type(dtype: torch.dtype, score: Score) -> torch.dtype:
    """What scores of a model of this type are kept in.

    Storing them costs by their bytes, and of a weight bfloat16 keeps the third digit whatever its
    size. Logits would tie.
    """
    narrow = dtype.itemsize == 2 and score == "weight"
    return torch.bfloat16 if narrow else torch.float32
