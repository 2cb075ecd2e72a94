"""All layers of a draft step in one launch, with the memory that its launches share."""

from typing import Self

from torch import Tensor

from specbench.engine.forward import SparseAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Transformer
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.step.plan import MOST_TAIL
from specbench.kernels.step.triton import draft_layers
from specbench.kernels.step.weights import StepWeights, covers
from specbench.kernels.step.workspace import StepWorkspace


class ResidentStep:
    """Calls `kernels.step` for a model and a cache.

    Parameters
    ----------
    model : Transformer
        One that `kernels.step.weights.covers` allows; it must keep its weights where they are.
    cache : KVCache
    """

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self.weights = StepWeights.of(model)
        self._workspaces: dict[tuple[int, int, int], StepWorkspace] = {}

    @classmethod
    def of(cls, model: Transformer, cache: KVCache) -> Self | None:
        """None for a model that the kernel does not take."""
        return cls(model, cache) if covers(model) else None

    def covers(self, attention: SparseAttention) -> bool:
        """Whether the kernel takes a step's tail."""
        return attention.tail.shape[-1] <= MOST_TAIL

    def __call__(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, attention: SparseAttention
    ) -> tuple[Tensor, Prenormed]:
        """The stream behind the last layer, and the final norm begun on it.

        They are overwritten by the next call.
        """
        key = len(tokens), attention.selected.shape[-1], attention.tail.shape[-1]
        if key not in self._workspaces:
            self._workspaces[key] = StepWorkspace(self.model.dtype, tokens.device)
        return draft_layers(
            tokens.contiguous(),
            self.weights,
            self.model.cos,
            self.model.signed_sin,
            positions,
            slots,
            self.cache.keys,
            self.cache.values,
            attention.selected,
            attention.tail,
            attention.scale,
            self._workspaces[key],
            lse=attention.lse,
        )
