"""What methods share that draft with a small model."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from specbench.config import RunConfig
from specbench.engine.batch import Batch
from specbench.engine.kv_cache import PAGE_SIZE
from specbench.methods.base import EngineMethod, Parameters
from specbench.methods.draft_model.drafter import Drafter
from specbench.methods.draft_model.loading import DraftModel, Reach

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model import Transformer
    from specbench.engine.model_config import ModelConfig


class WithDraftModel(EngineMethod):
    """Loads the small model, once for an engine, and gives every request its prefill.

    Parameters
    ----------
    parameters : Parameters
        With a `draft_model`.
    model : Transformer, optional
        The drafter, where it is loaded already.
    """

    def __init__(self, parameters: Parameters, model: "Transformer | None" = None) -> None:
        super().__init__(parameters)
        self.source = DraftModel(str(vars(parameters)["draft_model"]), model)
        self.prefill_chunk: int = RunConfig.model_fields["prefill_chunk"].default

    @abstractmethod
    def reach(self, max_len: int, prefill_chunk: int) -> Reach:
        """Entries and positions that the drafter needs for requests of `max_len` tokens."""

    def report(self) -> dict[str, Any]:
        """The settings, and where the drafter came from."""
        return super().report() | {"drafter": self.source.provenance}

    def check(self, config: RunConfig, model: "ModelConfig", max_len: int) -> None:
        """Refuse another vocabulary, and a working KV beyond the drafter's context."""
        self.source.check_vocabulary(config, model)
        self.prefill_chunk = config.prefill_chunk
        self.reach(max_len, self.prefill_chunk)

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """The drafter, its KV, and what gathering holds; and what the method itself holds."""
        reach = self.reach(max_len, self.prefill_chunk)
        entries = max_len + self.nodes
        own = Drafter.memory_bytes(self.source.config, rows, entries, reach, dtype)
        return super().memory_bytes(model, rows, max_len, dtype) + own

    def page_bytes(self, model: "ModelConfig", dtype: torch.dtype) -> int:
        """The drafter's KV, which has the same pages."""
        return PAGE_SIZE * self.source.config.kv_bytes_per_token(dtype)

    def bind(self, engine: "Engine") -> None:
        """Load the drafter and allocate its KV, unless this engine has them."""
        super().bind(engine)
        bound = vars(self).get("drafter")
        if bound is None or bound.engine is not engine:
            reach = self.reach(engine.max_len, engine.prefill_chunk)
            self.drafter = Drafter(engine, self._load(engine, reach), reach)

    def _load(self, engine: "Engine", reach: Reach) -> "Transformer":
        """The small model; with positions for any setting, so that others need not load it anew."""
        source = self.source
        if source.loaded is not None:
            return source.loaded
        positions = max(reach.positions, min(source.config.context_length, engine.max_len))
        return engine.drafter(
            source.spec, lambda: source.load(engine.dtype, engine.device, positions)
        )

    def admit(self, row: int, batch: Batch) -> None:
        """The drafter's own prefill."""
        super().admit(row, batch)
        if self.gamma:
            self.drafter.prefill(row, batch, self.engine.prefill_chunk)
