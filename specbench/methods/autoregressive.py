"""Plain decoding, one token a forward: the paired baseline."""

from specbench.engine.batch import Batch
from specbench.methods.base import Draft, EngineMethod


class Autoregressive(EngineMethod):
    """The same engine, model code and kernels without speculation."""

    name = "autoregressive"
    summary = "no speculation: the paired baseline of every run"

    def draft(self, batch: Batch) -> Draft | None:
        """None: the verification of no draft is an ordinary decode step."""
        return None
