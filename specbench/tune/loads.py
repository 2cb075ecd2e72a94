"""The loads of a tuning: batches and contexts, each tuned by itself."""

from itertools import product
from typing import TYPE_CHECKING

from specbench.config import TuneConfig

if TYPE_CHECKING:
    from specbench.tune.job import Job


def split_loads(config: TuneConfig) -> dict[str, TuneConfig]:
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
        found["-".join(parts)] = config.model_copy(update=one)
    return found


def pinned(config: TuneConfig, job: "Job") -> TuneConfig:
    """`config` with what was chosen once: another process must not choose anew."""
    chosen = job.plan.config
    values = {
        "num_prompts": len(job.plan.workloads[0].requests),
        "held_out": len(job.held_out.requests),
        "batch_size": (chosen.batch_size,),
        "rope_scaling": chosen.rope_scaling,
    }
    return config.model_copy(update=values)
