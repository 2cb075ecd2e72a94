"""What a run is asked to do: one frozen object, one source of defaults."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

Score = Literal["logit", "weight", "random"]
Queries = Literal["first+last", "last", "all"]
Share = Literal["head", "layer"]
Collecting = Literal["cheap", "full"]
Positions = Literal["absolute", "cache-relative"]
Normaliser = Literal["exact", "draft", "previous"]
AttentionBackend = Literal["auto", "triton", "flash-attn", "sdpa"]
Goal = Literal["throughput", "tpot"]
Host = Literal["engine", "vllm"]
Gamma = Annotated[int, Field(ge=0, le=64)]


class RunConfig(BaseModel):
    """The options of `specbench run`. `None` means: chosen for the machine, method or dataset.

    Every field is an option of the same name on the command line and a key of the YAML file that
    `--config` takes; the descriptions are the command line's help.
    """

    # built when first used: the help needs the fields alone
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    model: str | None = Field(
        None, description="Hub id, Hugging Face folder, .gguf file, or dummy:<config>."
    )
    method: tuple[str, ...] = Field(
        ("vegas",), min_length=1, description="Method to measure, or 'all'."
    )
    host: tuple[Host, ...] = Field(
        ("engine",),
        min_length=1,
        description="What methods run in: specbench's engine, or vLLM with specbench's plug-in "
        "(vegas, magicdec stream; docs/vllm.md).",
    )
    dataset: tuple[str, ...] = Field(
        ("longbench-v2",),
        min_length=1,
        description="Dataset, file:PATH to a JSONL of prompts, or 'all'.",
    )
    source: str | None = Field(
        None, description="Where the data is: 'hub', 'sample' (built in), or a path."
    )
    revision: str | None = Field(None, description="Revision of the dataset on the hub.")
    model_revision: str | None = Field(None, description="Revision of the model on the hub.")
    trust_remote_code: bool = Field(
        False, description="Run tokenizer and model code that comes with the model."
    )
    num_prompts: PositiveInt | None = Field(None, description="Prompts a dataset.")
    context_len: PositiveInt | None = Field(
        None, description="Longest prompt in tokens; longer ones lose their middle."
    )
    max_new_tokens: PositiveInt | None = Field(None, description="New tokens a request, at most.")
    batch_size: PositiveInt | None = Field(None, description="Requests that decode together.")
    prefill_chunk: PositiveInt = Field(512, description="Prompt tokens a prefill forward.")
    temperature: float = Field(0.0, ge=0, le=100, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; 1 keeps all.")
    top_k: NonNegativeInt = Field(0, description="Most likely tokens kept; 0 keeps all.")
    seed: NonNegativeInt = Field(0, lt=2**63, description="Seeds sampling and the built-in sample.")
    repeats: PositiveInt = Field(3, description="Interleaved passes over every arm.")
    ignore_eos: bool = Field(False, description="Decode to the length limit (for step times).")
    baseline: bool = Field(True, description="Run the paired autoregressive arm.")
    chat_template: bool = Field(True, description="Wrap prompts in the model's chat template.")
    thinking: bool | None = Field(None, description="Thinking mode of models that have one.")
    rope_scaling: str | None = Field(
        None, description="Override the RoPE scaling: 'yarn:4', 'linear:2', 'dynamic:2'."
    )
    device: Literal["cpu", "cuda"] | None = Field(None, description="Where to run.")
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = Field(
        None, description="Type of weights and KV cache."
    )
    attention_backend: AttentionBackend = Field(
        "auto",
        description="Kernels of the engine: Triton's on a CUDA device, FlashAttention for what it "
        "does as well, or plain torch.",
    )
    graphs: bool = Field(True, description="One CUDA graph an iteration, where it can be had.")
    allow_eager: bool = Field(
        False, description="Compare arms of which some cannot run as a CUDA graph."
    )
    reuse_prompts: bool = Field(
        False,
        description="Prefill each prompt in an arm's first pass only, and keep its KV for the "
        "others: TTFT and end-to-end figures are then of that pass.",
    )
    threads: PositiveInt | None = Field(None, description="CPU threads of torch.")
    output: Path | None = Field(None, description="Folder for the records and reports.")
    resume: bool = Field(False, description="Continue the run in the output folder.")
    timeout: PositiveInt = Field(
        1800, description="Seconds without a token after which an arm has timed out."
    )
    schedule: Path | None = Field(
        None, description="Settings by batch and context, as a tuning of several loads left them."
    )
    tuned: tuple[Path, ...] = Field(
        (),
        description="Folder of a tuning, or its tuned.yaml: an arm with the settings found there, "
        "beside those of --method, which then has no default.",
    )

    variant: str | None = Field(
        None, description="Variant of a method that has several; 'all' makes an arm of each."
    )
    gamma: NonNegativeInt | None = Field(None, le=64, description="Draft tokens a step.")
    kept_ratio: float | None = Field(
        None, gt=0, le=1, description="Share of the KV entries that drafts read."
    )
    draft_weights: str | None = Field(
        None, description="LongSpec's weights: a folder, a hub id, or 'dummy' for random ones."
    )
    ngram_max: PositiveInt | None = Field(
        None, description="Longest run of last tokens that prompt lookup looks for."
    )
    ngram_min: PositiveInt | None = Field(
        None, description="Shortest run of last tokens that prompt lookup looks for."
    )
    budget: PositiveInt | None = Field(
        None, description="KV entries that MagicDec's drafts read, where no --kept-ratio is given."
    )
    min_tokens: PositiveInt | None = Field(None, description="Fewest KV entries that drafts read.")
    score: Score | None = Field(None, description="What Vegas ranks by; random is a control.")
    queries: Queries | None = Field(None, description="Verify rows whose scores Vegas sums.")
    share: Share | None = Field(None, description="One set a KV head, or one a layer.")
    normaliser: Normaliser | None = Field(
        None,
        description="What Vegas's weights are divided by: their own sum, or, which saves a second "
        "pass, that of the same tokens' draft steps or of the verification before.",
    )
    sinks: NonNegativeInt | None = Field(None, description="First tokens always kept.")
    window: NonNegativeInt | None = Field(
        None, description="Last ranked tokens always kept; SnapKV's are also those that rank."
    )
    pool: PositiveInt | None = Field(None, description="Entries whose scores SnapKV averages.")
    dense_layers: NonNegativeInt | None = Field(
        None, description="First layers in which Quest's drafts read everything."
    )
    positions: Positions | None = Field(
        None, description="Rotary positions of what MagicDec's stream keeps."
    )
    draft_model: str | None = Field(
        None,
        description="A small model that drafts in the target's place (SpecExtend, MagicDec's "
        "stream), named as for --model.",
    )
    draft_window: PositiveInt | None = Field(
        None,
        description="Prompt tokens that a draft model's prefill looks back on, where its own "
        "context is shorter than the prompt.",
    )
    chunk: PositiveInt | None = Field(None, description="Tokens of a chunk of SpecExtend.")
    top_chunks: PositiveInt | None = Field(
        None, description="Chunks that SpecExtend's drafts read, where no --kept-ratio is given."
    )
    interval: PositiveInt | None = Field(
        None, description="Verifications between two choices of SpecExtend's chunks."
    )
    collect: Collecting | Literal["all"] | None = Field(
        None,
        description="SpecExtend's scores: of one query after acceptance, or of all verify rows as "
        "published; 'all' makes an arm of each.",
    )
    drafts: Literal["chain", "tree"] | None = Field(
        None,
        description="What LongSpec drafts (by default trees), and SpecExtend where the target "
        "drafts for itself (by default chains).",
    )
    tree_shape: tuple[PositiveInt, ...] | None = Field(
        None, min_length=1, description="Nodes of each level of LongSpec's trees."
    )
    nodes: PositiveInt | None = Field(None, description="Nodes of a draft tree, and of a level.")
    depth: PositiveInt | None = Field(None, description="Levels of a draft tree, at most.")
    threshold: float | None = Field(
        None, ge=0, description="Expected tokens that another level of a draft tree must add."
    )
    vllm_arg: tuple[str, ...] | None = Field(
        None,
        description="Engine argument KEY=VALUE for vLLM, typed by vLLM itself; each "
        "speculative_config='{...}' is an arm beside plain vLLM.",
    )
    vllm_python: Path | None = Field(
        None, description="Python interpreter that has vLLM, if not this one."
    )
    vllm_timeout: PositiveInt | None = Field(
        None, description="Seconds without news from vLLM after which its arm has timed out."
    )

    def method_settings(self) -> dict[str, Any]:
        """The settings of methods that were given."""
        given = {name: getattr(self, name) for name in METHOD_FIELDS}
        return {name: value for name, value in given.items() if value is not None}


class SweepConfig(RunConfig):
    """The options of a run at one load or several: batches by contexts."""

    batch_size: tuple[PositiveInt, ...] | None = Field(  # type: ignore[assignment]
        None,
        min_length=1,
        description="Requests that decode together; several are measured one after the other.",
    )
    context_len: tuple[PositiveInt, ...] | None = Field(  # type: ignore[assignment]
        None,
        min_length=1,
        description="Longest prompt in tokens; longer ones lose their middle. Several make a "
        "table by load.",
    )

    @field_validator("batch_size", "context_len", mode="before")
    @classmethod
    def _each_once(cls, given: Any) -> Any:
        """One number or several, as YAML and the command line have them, each once, ascending."""
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",") if part.strip()]
        if isinstance(given, int):
            given = (given,)
        if isinstance(given, list | tuple) and all(str(n).isdecimal() for n in given):
            return tuple(sorted({int(n) for n in given}))
        return given

    def run_config(self) -> RunConfig:
        """The options that a run of one load has too, as far as given or not a run's own."""
        values = {
            name: getattr(self, name)
            for name, field in RunConfig.model_fields.items()
            if name in self.model_fields_set or getattr(self, name) != field.default
        }
        for name in ("batch_size", "context_len"):
            if values.get(name) is not None:
                (values[name],) = values[name]
        return RunConfig(**values)


class TuneConfig(SweepConfig):
    """The options of `specbench tune`: those of a run, and what the search may do."""

    reuse_prompts: bool = Field(
        True, description="Prefill each prompt once, and keep its KV for all trials."
    )
    ratios: tuple[PositiveFloat, ...] | None = Field(
        None,
        min_length=1,
        description="Values of kept_ratio (of a tree's width for LongSpec) to measure, all of "
        "them.",
    )
    gammas: tuple[Gamma, ...] | None = Field(
        None,
        min_length=1,
        description="Values of gamma (of the depth of trees) to measure, all of them; 0 is added.",
    )
    exhaustive: bool = Field(
        False,
        description="As a check, measure all of the grids after the three steps, and run their "
        "best beside the choice at the end.",
    )
    objective: Goal = Field("throughput", description="What to make best.")
    held_out: PositiveInt | None = Field(
        None, description="Prompts of the final figure, beside those of --num-prompts."
    )
    budget_minutes: PositiveFloat | None = Field(
        None, description="Minutes of trials of a load, after which the best so far is the choice."
    )
    storage: str | None = Field(
        None, description="URL of an Optuna database, or path of a journal file."
    )
    workers: PositiveInt = Field(
        1, description="Processes that share the trials: a GPU each, or a share of the threads."
    )
    study: str | None = Field(None, min_length=1, description="Name of the study in the storage.")


METHOD_FIELDS = (
    "variant",
    "gamma",
    "kept_ratio",
    "draft_weights",
    "ngram_max",
    "ngram_min",
    "budget",
    "min_tokens",
    "score",
    "queries",
    "share",
    "normaliser",
    "sinks",
    "window",
    "pool",
    "dense_layers",
    "positions",
    "draft_model",
    "draft_window",
    "chunk",
    "top_chunks",
    "interval",
    "collect",
    "drafts",
    "tree_shape",
    "nodes",
    "depth",
    "threshold",
    "vllm_arg",
    "vllm_python",
    "vllm_timeout",
)
