"""LongSpec: one trained block drafts from the target's own last-layer KV."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from specbench.config import RunConfig
from specbench.engine.batch import Batch
from specbench.errors import UsageError
from specbench.kernels.ring_attention.reference import ring_attention
from specbench.methods.base import Capabilities, EngineMethod, Method, Parameters
from specbench.methods.longspec.block import DraftBlock, rotation
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.drafts import DUMMY, locate_draft, shipped
from specbench.methods.longspec.ring import Ring
from specbench.methods.longspec.weights import checksum, load, read_config

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model_config import ModelConfig
    from specbench.methods.longspec.levels import Levels


class LongSpecParameters(Parameters):
    """Settings of chains and trees."""

    draft_weights: str | None = Field(
        None, description="Draft weights: a folder, a hub id, or 'dummy'; by default what ships."
    )


class LongSpec(EngineMethod):
    """Drafts of a trained block that reads the target's KV and keeps next to none of its own.

    A subclass says in which order the block is asked: chains or trees.

    Of the text, the block's self-attention sees the last tokens (512), whose keys and values lie in
    a ring; its cross-attention sees the target's last layer. The ring's entries depend on token and
    position alone: they are made from the last token ids when a request starts, and from the last
    few at each iteration, so that the draft has no prefill and nothing to take back.

    Source: Yang et al., "LongSpec", arXiv 2502.17421.
    """

    name = "longspec"
    summary = "one trained block drafts from the target's last-layer KV; its own memory is constant"
    paper = "arXiv 2502.17421"
    capabilities = Capabilities(needs_draft_weights=True)
    parameters_type: ClassVar[type[Parameters]] = LongSpecParameters
    parameters: LongSpecParameters
    shallower: ClassVar[str]
    """What a user can do about drafts that are too deep."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.target: str | None = None

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        """See `Method`; the target's name is what decides which weights ship for it."""
        method = super().from_config(config)
        method.target = config.model
        return method

    @classmethod
    def variants(cls) -> dict[str, type[Method]]:
        """Trees, the default, or chains."""
        from specbench.methods.longspec.chain_method import LongSpecChain
        from specbench.methods.longspec.tree_method import LongSpecTree

        return {cls.name: LongSpecTree, f"{cls.name} --drafts chain": LongSpecChain}

    @classmethod
    def arms(cls, config: RunConfig) -> dict[str, Method]:
        """One arm."""
        trees, chains = cls.variants().values()
        kind = chains if config.drafts == "chain" else trees
        return {cls.name: kind.from_config(config)}

    @classmethod
    def in_all(cls, config: RunConfig) -> bool:
        """Whether there is a draft for the model."""
        return config.draft_weights is not None or shipped(str(config.model)) is not None

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Tokens of a row that are fed to the block at each depth, 1 at depth 0."""

    @property
    def fed(self) -> int:
        """Drafts of an iteration that are fed to the block, whose KV needs room beside the ring."""
        return sum(self.widths[1:])

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Weights and rings: as much for any `max_len`.

        Raises
        ------
        UsageError, DataError
            There is no draft for `model`, or it does not fit.
        """
        return self._config(model).memory_bytes(rows, self.fed, dtype)

    def bind(self, engine: "Engine") -> None:
        """Load the block and allocate the rings."""
        loaded = self.is_bound_to(engine)
        super().bind(engine)
        if not loaded:
            self.block = self.load_block(engine)
        config = self.block.config
        self.ring = Ring(
            engine.batch.rows,
            config.window,
            self.fed,
            config.num_kv_heads,
            config.head_dim,
            engine.dtype,
            engine.device,
        )
        self.levels = self._fused(engine)
        self.reach = torch.arange(-self.gamma, 1, device=engine.device)
        self.window_reach = torch.arange(1 - config.window, 1, device=engine.device)

    def _fused(self, engine: "Engine") -> "Levels | None":
        """The block on the engine's kernels, where it has them."""
        if not engine.compute.fused:
            return None
        from specbench.engine.triton_compute import TritonCompute
        from specbench.methods.longspec.levels import Levels

        assert isinstance(engine.compute, TritonCompute)
        drafting = self.gamma, self.widths, engine.scale
        return Levels(self.block, engine.compute, self.ring, *drafting)

    def load_block(self, engine: "Engine") -> DraftBlock:
        """The draft for the engine's model, in its dtype and on its device."""
        source = locate_draft(self.parameters.draft_weights, engine.config.name)
        config = self._config(engine.config)
        if source.kind == DUMMY:
            block = DraftBlock(config, engine.dtype, engine.device)
            block.randomise(0)
            return block
        name = self.name, self.parameters.draft_weights
        return engine.drafter(name, lambda: load(source, engine.dtype, engine.device))

    def report(self) -> dict[str, Any]:
        """The settings for the records, and the checksum of the weights.

        Raises
        ------
        UsageError, DataError
            There are no weights.
        """
        values = self.parameters.model_dump(mode="json")
        named = self.parameters.draft_weights
        if named != DUMMY and (named or self.target):
            values["draft_sha256"] = checksum(locate_draft(named, str(self.target)))
        return values

    def admit(self, row: int, batch: Batch) -> None:
        """Fill the row's ring from the last token ids, the first new one included."""
        if self.gamma:
            positions = batch.lengths[row] + self.window_reach
            tokens = batch.history[row].gather(0, positions.clamp(min=0))
            keys, values = self._keys_values(tokens[None], positions[None])
            self.ring.commit_row(row, positions, keys[0], values[0])

    def score(self, batch: Batch, depth: int, tokens: Tensor, drafted: Tensor) -> Tensor:
        """The draft's logits after some tokens, all of them `depth` behind the last committed one.

        Parameters
        ----------
        batch : Batch
        depth : int
            0 for the last committed token itself.
        tokens : Tensor
            int64 `[R, n]`. At depth 1 and below they are the last n of the drafts so far.
        drafted : Tensor
            bool `[n, m]` or `[R, n, m]`, which of the m drafts so far each of them sees, itself
            included.

        Returns
        -------
        Tensor
            `[R, n, V]`.
        """
        return self.engine.compute.logits(self.hidden(batch, depth, tokens, drafted))

    def hidden(self, batch: Batch, depth: int, tokens: Tensor, drafted: Tensor) -> Tensor:
        """What the LM head makes logits of, `[R, n, hidden]`; see `score`."""
        if self.levels is not None:
            return self.levels.hidden(batch, depth, tokens, drafted)
        engine, ring = self.engine, self.ring
        positions = (batch.lengths[:, None] + depth).expand_as(tokens)
        seen = drafted if drafted.dim() == 3 else drafted[None]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if depth:
                ring.draft(drafted.shape[-1] - tokens.shape[1], k, v)
            place = batch.lengths, depth, seen, ring.window, engine.scale
            return ring_attention(q, ring.keys, ring.values, *place)

        found: Tensor = self.block(
            F.embedding(tokens, engine.model.embed),
            rotation(engine.model, positions),
            attend,
            lambda q: self._attend_target(batch, q),
        )
        return found

    def _attend_target(self, batch: Batch, q: Tensor) -> Tensor:
        """Cross-attention of `[R, n, H, D]` over all that the target's last layer holds of a row.

        The n tokens pass as further heads of one query, since none is before another.
        """
        config = self.engine.config
        count, groups = q.shape[1], config.num_kv_heads
        folded = q.unflatten(2, (groups, -1)).transpose(1, 2).flatten(1, 3)[:, None]
        out = self.engine.compute.attend(
            config.num_layers - 1,
            folded,
            batch.block_table,
            batch.lengths * batch.active,
            batch.active.long(),
            self.engine.scale,
        )
        return out[:, 0].unflatten(1, (groups, count, -1)).transpose(1, 2).flatten(2, 3)

    def catch_up(self, batch: Batch) -> None:
        """Put into the ring what the last iteration committed, at most gamma + 1 tokens.

        On the engine's kernels they join it in the forward at depth 0, which must come next.
        """
        if self.levels is not None:
            self.levels.begin(batch)
            return
        positions = batch.lengths[:, None] + self.reach
        tokens = batch.history.gather(1, positions.clamp(min=0))
        self.ring.commit(positions, *self._keys_values(tokens, positions))

    def _keys_values(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        model = self.engine.model
        x = F.embedding(tokens, model.embed)
        return self.block.keys_values(x, rotation(model, positions))

    def _config(self, target: "ModelConfig") -> DraftConfig:
        source = locate_draft(self.parameters.draft_weights, target.name)
        if source.kind == DUMMY:
            return DraftConfig.of(target)
        config = read_config(source.root, source.label)
        config.check_target(target, source.label)
        if self.gamma >= config.window:
            raise UsageError(
                f"longspec: drafts are {self.gamma} deep, which must be below the {config.window} "
                f"tokens that the draft {source.label} looks back on: {self.shallower}"
            )
        return config
