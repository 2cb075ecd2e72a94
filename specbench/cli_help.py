"""How the command line shows itself: options in groups, examples, completion of names."""

from typing import Any

from typer.core import TyperCommand

from specbench.config import METHOD_FIELDS

METHODS, DATA, MODEL = "What to measure", "Data", "Model and machine"
DECODING, PROTOCOL, TUNING = "Decoding", "Run and output", "Tuning"
SETTINGS, SERVED, OTHER = "Settings of methods", "Settings of vLLM", "Options"
ORDER = (METHODS, TUNING, DATA, MODEL, DECODING, PROTOCOL, SETTINGS, SERVED, OTHER)

_GROUPS = {
    METHODS: ("method", "host", "dataset", "variant", "baseline", "tuned", "schedule"),
    DATA: (
        "source",
        "revision",
        "num_prompts",
        "context_len",
        "chat_template",
        "thinking",
        "held_out",
    ),
    MODEL: (
        "model",
        "model_revision",
        "trust_remote_code",
        "rope_scaling",
        "device",
        "dtype",
        "attention_backend",
        "graphs",
        "allow_eager",
        "threads",
    ),
    DECODING: (
        "batch_size",
        "max_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "ignore_eos",
        "prefill_chunk",
    ),
    PROTOCOL: ("repeats", "reuse_prompts", "output", "resume", "timeout"),
    TUNING: (
        "ratios",
        "gammas",
        "exhaustive",
        "objective",
        "budget_minutes",
        "storage",
        "workers",
        "study",
    ),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}

RUN_EXAMPLES = """
specbench run --method vegas --dataset longbench-v2
specbench run --method all --dataset all --source sample --output runs/all
specbench run --method all --dataset all --output runs/all --dry-run
specbench run --method all --dataset all --output runs/all --shard 2/4
specbench run --model ./my-model --dataset file:prompts.jsonl --gamma 8 --kept-ratio 0.05
specbench run --batch-size 1,4,16,64 --context-len 2048,8192,20000 --output runs/loads
specbench run --config runs/x/tuned.yaml
specbench run --schedule runs/x/schedule.yaml --batch-size 16
specbench run --tuned runs/x --tuned runs/y --method vllm
"""
TUNE_EXAMPLES = """
specbench tune --method vegas --dataset longbench-v2
specbench tune --method vegas --dataset govreport --ratios 0.02,0.05,0.1 --gammas 2,4,8
specbench tune --method vegas --batch-size 1,4,16,64 --context-len 2048,8192,20000
"""
REPORT_EXAMPLES = """
specbench report runs/x
specbench report runs/a runs/b --output runs/a-and-b
specbench report runs/all                  # the parts of a plan that ran with --shard
"""


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups, in plain text, and examples as typed."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for the arguments and for each group that has options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None) or OTHER
                sections.setdefault("Arguments" if argument else panel, []).append(record)
        for title in ("Arguments", *ORDER):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, a line each."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"  {line}\n")


def group_of(field: str) -> str:
    """The group of a configuration's field; what is no one else's is a setting of methods."""
    if field in _GROUP_OF:
        return _GROUP_OF[field]
    if field.startswith("vllm_"):
        return SERVED
    return SETTINGS if field in METHOD_FIELDS else OTHER


def complete_methods(incomplete: str) -> list[str]:
    """Names that complete the last of a list of methods."""
    from specbench.methods import METHODS as KNOWN

    return _complete(incomplete, [*KNOWN.names(), "all"])


def complete_datasets(incomplete: str) -> list[str]:
    """Names that complete the last of a list of datasets."""
    from specbench.datasets import DATASETS

    return _complete(incomplete, [*DATASETS.names(), "all", "file:"])


def _complete(incomplete: str, names: list[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
