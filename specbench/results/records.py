"""The schema of what a run writes to disk; every table and plot is derived from it.

A run's folder holds `run.json` (a `RunRecord`, written before anything runs) and the append-only
files `requests.jsonl`, `arms.jsonl`, `lossless.jsonl`, `scores.jsonl` and `overhead.jsonl`, one
record a line. `migration.py` brings records of older versions up to this one.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 2


# No file is believed beyond these: what figures are made of stays finite.
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Real = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class Status(StrEnum):
    """How an arm ended."""

    PASSED = "PASSED"
    LOSSY = "LOSSY"
    EMPTY = "EMPTY"
    OOM = "OOM"
    CONTEXT_TOO_LONG = "CONTEXT_TOO_LONG"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"


class Record(BaseModel):
    """Base of all records: immutable, and a field it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StepTimes(Record):
    """Seconds of each decode step of one request, and their split.

    Every list has one entry a step. A step belongs to the whole batch, so each request that ran in
    it carries the same seconds. On the CPU the split comes from timers; elsewhere it is unknown.
    """

    step_s: list[Real]
    draft_s: list[Real] | None
    verify_s: list[Real] | None
    selection_s: list[Real] | None
    sampling_s: list[Real] | None
    running: list[Whole] = Field(description="requests that decoded in this step")

    @property
    def parts(self) -> tuple[list[float], ...] | None:
        """Draft, verify, selection and sampling seconds; None where the split is unknown."""
        known = (self.draft_s, self.verify_s, self.selection_s, self.sampling_s)
        return None if None in known else tuple(part for part in known if part is not None)


class RequestTimes(Record):
    """When things happened to one request; everything that differs from run to run."""

    segment: Whole = Field(description="which process wrote it: 0, one more at each --resume")
    queue_s: Real | None = Field(
        description="from the start of the pass to admission; null where prefill and decode were "
        "timed in passes of their own, so that the requests share no time line"
    )
    reused_tokens: Whole = Field(
        0,
        description="prompt tokens whose KV an earlier pass left: not prefilled, so that the "
        "times of prefill say nothing",
    )
    prefill_s: Real
    ttft_s: Real = Field(description="admission to first token: prefill and its sampling")
    e2e_s: Real = Field(description="admission to last token")
    steps: StepTimes


class RequestRecord(Record):
    """One request of one arm in one repeat. Same key, same content in every run, times aside."""

    schema_version: int = SCHEMA_VERSION
    arm: str
    dataset: str
    repeat: Whole
    index: Whole = Field(description="position in the prompt list")
    item_id: str
    prompt_tokens: Whole
    output_ids: list[Whole]
    finish_reason: Literal["eos", "length"]
    drafted: list[Whole] | None = Field(
        description="tokens drafted for each verify step, of a tree its depth; null where the "
        "engine does not say"
    )
    accepted: list[Whole] = Field(description="drafts the verification accepted, each step")
    committed: list[Whole] = Field(description="tokens committed, bonus included, each step")
    degenerate: bool = Field(description="the output loops, which inflates acceptance")
    times: RequestTimes

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What identifies the request within a run: arm, dataset, repeat, index."""
        return self.arm, self.dataset, self.repeat, self.index


class SpecCounters(Record):
    """An engine's own counters of its speculation, over one pass."""

    num_drafts: Whole = Field(description="verify steps of a request that had drafts")
    draft_tokens: Whole
    accepted_tokens: Whole
    accepted_per_position: list[Whole] = Field(description="steps that accepted draft 1, 2, ...")


class ServedRecord(Record):
    """What an engine of another process (vLLM) said of one pass: its counters' differences.

    After a resume they cover what the last process ran of the pass.
    """

    version: str
    settings: dict[str, Any] = Field(description="the engine's effective settings")
    prompt_tokens: Whole
    fill_cache_hits: Whole = Field(description="prompt tokens read from cache while filling")
    decode_cache_hits: Whole = Field(description="the same while decoding")
    preemptions: Whole | None
    spec_decode: SpecCounters | None = Field(description="null with speculation off")


class ArmRecord(Record):
    """How one pass of an arm over one dataset ended (one repeat)."""

    schema_version: int = SCHEMA_VERSION
    arm: str
    dataset: str
    repeat: Whole
    status: Status
    message: str | None = None
    graph_mode: str = Field(description="'eager', or how CUDA graphs were used")
    attention_backend: str
    peak_memory_bytes: Whole | None = None
    served: ServedRecord | None = None


class LosslessRecord(Record):
    """The losslessness verdict for one request of an arm in one repeat.

    `tier` is "exact" (token equality with the autoregressive arm), "teacher-forced" (each token
    within `threshold` of the arg-max logit), "agreement" (of another engine, whose kernels round
    differently: compared, not judged) or "unchecked" (`reason` says why).
    """

    schema_version: int = SCHEMA_VERSION
    arm: str
    dataset: str
    repeat: Whole
    index: Whole
    tier: Literal["exact", "teacher-forced", "agreement", "unchecked"]
    lossless: bool | None
    identical: bool | None = Field(description="same tokens as the autoregressive arm")
    first_divergence: Whole | None = None
    top2_margin: float | None = Field(
        default=None, description="logit margin of the two best tokens at the first divergence"
    )
    worst_margin: float | None = Field(
        default=None, description="largest distance of a committed token's logit from the maximum"
    )
    threshold: float | None = None
    reason: str | None = None


class ScoreRecord(Record):
    """How right one output is by its dataset's own measure, from 0 to 1."""

    schema_version: int = SCHEMA_VERSION
    arm: str
    dataset: str
    repeat: Whole
    index: Whole
    score: Real = Field(ge=0, le=1)


class OverheadRecord(Record):
    """Device time of one iteration of an arm, from a profiler trace, in milliseconds.

    Selection is measured twice: as the iteration less the same iteration with its sets frozen and
    collection off, and from the trace: selection's kernels, what collecting adds to drafts and
    verification, and the gaps that both add. The other parts are those of the iteration without it.
    """

    schema_version: int = SCHEMA_VERSION
    arm: str
    dataset: str
    iterations: Whole = Field(ge=1, description="iterations behind the means")
    iteration_ms: Real = Field(gt=0)
    draft_ms: Real
    verify_ms: Real
    selection_ms: Real = Field(description="by the difference of two iterations")
    sampling_ms: Real
    other_ms: Real = Field(description="gaps between kernels, measured")
    selection_trace_ms: Real | None = Field(description="by the trace; null where not taken")
    draft_bytes: Whole | None = Field(None, description="weights and KV that the drafts move")
    iteration_bytes: Whole | None = Field(None, description="the same of the whole iteration")
    copy_gb_per_s: Real | None = Field(None, description="read and written by a device copy")


class RefusedDataset(Record):
    """A dataset of the plan that could not be run at all: all its cells have this status."""

    name: str
    status: Status
    message: str


class PromptInfo(Record):
    """One prompt of the frozen list: enough to rebuild and to compare it, without its text."""

    index: Whole
    item_id: str
    tokens: Whole
    original_tokens: Whole
    truncated: bool


class DatasetInfo(Record):
    """Where one dataset's prompts came from."""

    name: str
    source: str
    revision: str | None
    template_sha256: str | None = Field(description="hash of the chat template, null without one")
    token_ids_sha256: str = Field(description="hash over all prompts' token ids, in order")
    skipped: dict[str, Whole] = Field(description="items left out, by reason")
    context_len: Whole = Field(description="longest prompt that was allowed, in tokens")
    max_new_tokens: Whole
    thinking: bool = Field(description="the model's thinking mode was on")
    cot: bool = Field(description="the prompt asks for reasoning in the answer")
    score: str | None = Field(description="what outputs are scored by; null where they are not")
    prompts: list[PromptInfo]


class ArmInfo(Record):
    """An arm of the plan: a method and its settings."""

    name: str
    method: str
    parameters: dict[str, Any]
    lossless: bool


class RunRecord(Record):
    """What was run, on what, and how: `run.json`."""

    schema_version: int = SCHEMA_VERSION
    created: str
    config: dict[str, Any]
    choices: list[str] = Field(description="what was chosen for the user, and why")
    environment: dict[str, Any]
    model: dict[str, Any]
    datasets: list[DatasetInfo]
    refused: list[RefusedDataset] = Field(description="datasets that could not be run at all")
    arms: list[ArmInfo]
    cells: list[tuple[str, str]] | None = Field(
        description="the (dataset, arm) pairs that this part of a plan runs; null for all of them"
    )
    warnings: list[str]
