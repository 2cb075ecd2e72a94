"""A tuning's load in the words of another process."""

from typing import TYPE_CHECKING

from specbench.config import TuneConfig

if TYPE_CHECKING:
    from specbench.tune.job import Job


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
