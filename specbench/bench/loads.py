"""The loads of a command: batches and contexts, each by itself."""

from itertools import product
from typing import TypeVar

from specbench.config import SweepConfig

C = TypeVar("C", bound=SweepConfig)


def split_loads(config: C) -> dict[str, C]:
    """The configuration of each load by its name, contexts ascending, then batches.

    A name says what loads differ in (``b16-c2048``); that of an only load is empty.
    """
    batches, contexts = config.batch_size or (None,), config.context_len or (None,)
    found = {}
    for context, batch in product(contexts, batches):
        parts = [f"b{batch}"] if len(batches) > 1 else []
        parts += [f"c{context}"] if len(contexts) > 1 else []
        one = {
            "batch_size": None if batch is None else (batch,),
            "context_len": None if context is None else (context,),
        }
        given = {name: value for name, value in one.items() if value is not None}
        found["-".join(parts)] = config.model_copy(update=given)
    return found
