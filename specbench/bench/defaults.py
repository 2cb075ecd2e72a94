"""What is chosen for the user: by the machine, the model and the dataset, each choice said."""

from typing import TYPE_CHECKING, Any

from specbench.config import RunConfig
from specbench.engine.catalog import default_model
from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.datasets.base import Dataset
    from specbench.engine.model_config import ModelConfig

CPU_CONTEXT, CPU_NEW_TOKENS, CPU_PROMPTS, CPU_BATCH = 1024, 32, 2, 1
# the paper's 68 nodes beside a token cost a CPU ten of its steps
CPU_TREE = (4, 4, 4)
CUDA_CONTEXT, CUDA_PROMPTS = 100_000, 64
CUDA_PREFILL_CHUNK = 4096
YARN = "yarn:4"


def resolve_machine(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Fill in what depends on the machine.

    Returns
    -------
    config : RunConfig
        With device, model, dtype, source, number of prompts and (on the CPU) batch size, Vegas's
        normaliser and LongSpec's tree set.
    choices : list of str
        A line for each choice that the user did not make.

    Raises
    ------
    UsageError
        CUDA is asked for and absent.
    """
    import torch

    found = torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise UsageError(
            "--device cuda: torch sees no CUDA device; 'specbench doctor' says what is missing"
        )
    device = config.device or ("cuda" if found else "cpu")
    cuda = device == "cuda"
    why = "on a CUDA device" if cuda else "on a CPU"
    chosen: dict[str, Any] = {
        "device": device,
        "model": default_model(device),
        "dtype": "bfloat16" if cuda else "float32",
        "num_prompts": CUDA_PROMPTS if cuda else CPU_PROMPTS,
    }
    if not cuda:
        chosen["batch_size"] = CPU_BATCH
        if {"vegas", "all"} & set(config.method):
            # their own sums would cost a GPU a second pass over the keys; here they are known
            chosen["normaliser"] = "exact"
        if _drafts_trees(config, config.model or chosen["model"]):
            chosen["tree_shape"] = CPU_TREE
    if not all(name.startswith("file:") for name in config.dataset):
        chosen["source"] = "hub" if cuda else "sample"
    choices = []
    if cuda and "prefill_chunk" not in config.model_fields_set:
        chosen["prefill_chunk"] = CUDA_PREFILL_CHUNK
    if config.device is None:
        choices.append(f"device {device}: CUDA is {'' if found else 'not '}available")
    updates = {}
    for name, value in chosen.items():
        if getattr(config, name) is None or name == "prefill_chunk":
            updates[name] = value
            if name != "device":
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                choices.append(f"{name.replace('_', '-')} {shown}: the default {why}")
    return config.model_copy(update=updates), choices


def _drafts_trees(config: RunConfig, model: str) -> bool:
    """Whether LongSpec's trees are an arm."""
    from specbench.methods.longspec.method import LongSpec

    in_all = "all" in config.method and LongSpec.in_all(config.model_copy(update={"model": model}))
    return config.drafts != "chain" and (in_all or LongSpec.name in config.method)


def context_limit(
    config: RunConfig, model: "ModelConfig", dataset: "Dataset", new_tokens: int
) -> tuple[int, str | None]:
    """Longest prompt in tokens, and what to say where the user did not choose it.

    Raises
    ------
    ContextTooLongError
        The context that the user asked for, with the new tokens, is beyond the model's.
    """
    if config.context_len is not None:
        able = model.with_rope_scaling(YARN) if may_extend(config, model) else model
        able.check_context(config.context_len + new_tokens)
        return config.context_len, None
    default = CUDA_CONTEXT if config.device == "cuda" else CPU_CONTEXT
    limit = min(default, dataset.default_context_len or default)
    if may_extend(config, model):
        return limit, f"{dataset.name}: context-len at most {limit:,}: the default"
    room = model.context_length - new_tokens
    if room < 1:
        model.check_context(1 + new_tokens)
    return min(limit, room), f"{dataset.name}: context-len {min(limit, room):,}: the default"


def may_extend(config: RunConfig, model: "ModelConfig") -> bool:
    """Whether YaRN may be chosen for data beyond the model's native range."""
    return (
        config.device == "cuda"
        and config.rope_scaling is None
        and model.rope_scaling is None
        and model.architecture == "qwen3"
    )


def new_tokens(config: RunConfig, dataset: "Dataset") -> tuple[int, str | None]:
    """New tokens a request, and what to say where the user did not choose."""
    if config.max_new_tokens is not None:
        return config.max_new_tokens, None
    if config.device == "cpu":
        return CPU_NEW_TOKENS, f"{dataset.name}: max-new-tokens {CPU_NEW_TOKENS}: a short CPU run"
    count = dataset.default_new_tokens
    return count, f"{dataset.name}: max-new-tokens {count}: the dataset's habit"
