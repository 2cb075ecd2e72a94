"""What an analysis is asked to do, in the same form as a run's configuration."""

from copy import copy
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from specbench.config import RunConfig, Share
from specbench.errors import UsageError

# a step has drafts where two tokens may follow the first, which the prefill yields
_SHORTEST = 3
# a median of fewer timings says little
_FEWEST_TIMINGS = 5


def _as_in_run(name: str) -> Any:
    """The default, range and description that `specbench run` has for `name`."""
    return copy(RunConfig.model_fields[name])


class AnalyzeConfig(BaseModel):
    """The options of `specbench analyze vegas`. `None` means: chosen for the machine or dataset."""

    # built when first used: the help needs the fields alone
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    model: str | None = _as_in_run("model")
    dataset: tuple[str, ...] = Field(
        ("longbench-v2",), min_length=1, description="Dataset, or file:PATH to a JSONL of prompts."
    )
    source: str | None = _as_in_run("source")
    revision: str | None = _as_in_run("revision")
    model_revision: str | None = _as_in_run("model_revision")
    trust_remote_code: bool = _as_in_run("trust_remote_code")
    num_prompts: PositiveInt | None = Field(None, description="Prompts.")
    context_len: PositiveInt | None = _as_in_run("context_len")
    max_new_tokens: int | None = Field(
        None, ge=_SHORTEST, description="New tokens a request, at most."
    )
    batch_size: PositiveInt | None = _as_in_run("batch_size")
    prefill_chunk: PositiveInt = _as_in_run("prefill_chunk")
    seed: NonNegativeInt = _as_in_run("seed")
    chat_template: bool = _as_in_run("chat_template")
    thinking: bool | None = _as_in_run("thinking")
    rope_scaling: str | None = _as_in_run("rope_scaling")
    device: Literal["cpu", "cuda"] | None = _as_in_run("device")
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = _as_in_run("dtype")
    attention_backend: Literal["auto", "triton", "flash-attn", "sdpa"] = _as_in_run(
        "attention_backend"
    )
    threads: PositiveInt | None = _as_in_run("threads")
    output: Path | None = _as_in_run("output")

    gamma: PositiveInt | None = _as_in_run("gamma")
    kept_ratio: float | None = _as_in_run("kept_ratio")
    min_tokens: PositiveInt | None = _as_in_run("min_tokens")
    score: Literal["logit", "weight"] | None = Field(None, description="What Vegas ranks by.")
    share: Share | None = _as_in_run("share")

    query_rows: PositiveInt = Field(
        16, le=64, description="Most query rows at which the kernels are timed."
    )
    timings: int = Field(
        7, ge=_FEWEST_TIMINGS, description="Timings of each kernel, in turns; the median counts."
    )

    def run_config(self) -> RunConfig:
        """The run that decodes the prompts.

        Raises
        ------
        UsageError
            More than one dataset.
        """
        if len(self.dataset) != 1 or "all" in self.dataset:
            raise UsageError(
                f"analyze takes one --dataset at a time, not {', '.join(self.dataset)}"
            )
        shared = RunConfig.model_fields.keys() & type(self).model_fields.keys()
        given = {name: getattr(self, name) for name in shared & self.model_fields_set}
        # steps are looked into from the host, and none of them is timed
        return RunConfig(**given, method=("vegas",), repeats=1, baseline=False, graphs=False)
