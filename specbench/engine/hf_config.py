"""A model's shape from a Hugging Face configuration and back; what the engine lacks is refused."""

from typing import Any

import torch

from specbench.engine.model_config import LARGEST_SIZE, ModelConfig
from specbench.engine.rope_scaling import parse_rope, rope_to_hf
from specbench.errors import DataError
from specbench.parsing import is_plain, shown

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def from_hf(
    config: dict[str, Any], name: str, generation_config: dict[str, Any] | None = None
) -> ModelConfig:
    """The model's shape from its ``config.json``.

    Parameters
    ----------
    config : dict
        Of transformers 5 or earlier.
    name : str
        The model's name for messages and records.
    generation_config : dict, optional
        ``generation_config.json``; its end tokens are added to the configuration's.

    Raises
    ------
    DataError
        An architecture that is not supported (the message lists those that are), a feature that
        the engine does not have, or a missing or malformed key.
    """
    architecture = _architecture(config, name)
    _refuse_unsupported(config, name)
    config = {"max_position_embeddings": 2048, **config} if architecture == "llama" else config
    for key in _REQUIRED:
        if config.get(key) is None:
            raise DataError(f"{name}: the model's configuration lacks {key!r}")
        if not is_plain(config[key], int) or config[key] < 1:
            raise DataError(f"{name}: {key} must be a positive integer, not {shown(config[key])}")
    theta, scaling = parse_rope(config, name)
    eps = config.get("rms_norm_eps", 1e-6)
    if not is_plain(eps, (int, float)) or not 0 < eps < 1:
        raise DataError(f"{name}: rms_norm_eps must be a positive number below 1, not {shown(eps)}")
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    default_head_dim = 128 if architecture == "qwen3" else config["hidden_size"] // heads
    return ModelConfig(
        architecture=architecture,
        name=name,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or default_head_dim,
        rms_norm_eps=float(eps),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=architecture == "qwen2" or bias,
        o_bias=architecture != "qwen2" and bias,
        mlp_bias=architecture == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=architecture == "qwen3",
        eos_ids=_eos_ids(name, config, generation_config or {}),
    )


def to_hf(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The ``config.json`` of a model, which `from_hf` and transformers 4 and 5 read back.

    Raises
    ------
    DataError
        A RoPE table that no configuration expresses (see `rope_to_hf`).
    """
    declared = {name: architecture for architecture, name in ARCHITECTURES.items()}
    return {
        "architectures": [declared[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope_to_hf(config.rope_scaling, config.name),
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias and config.architecture != "qwen2",
        "mlp_bias": config.mlp_bias,
        "eos_token_id": list(config.eos_ids),
        "dtype": str(dtype).removeprefix("torch."),
    }


_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def _architecture(config: dict[str, Any], name: str) -> str:
    declared = config.get("architectures") or []
    if not isinstance(declared, list):
        raise DataError(f"{name}: architectures must be a list of names, not {shown(declared)}")
    for architecture in declared:
        if isinstance(architecture, str) and architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    model_type = config.get("model_type")
    if not declared and model_type in ARCHITECTURES.values():
        return str(model_type)
    raise unsupported_architecture(name, shown(declared[0] if declared else model_type))


def unsupported_architecture(name: str, found: str) -> DataError:
    """The error for a model whose architecture the engine does not have."""
    return DataError(
        f"{name}: the architecture {found} is not supported. Supported: "
        f"{', '.join(ARCHITECTURES)} (Llama, Qwen2/Qwen2.5, Qwen3)."
    )


def _refuse_unsupported(config: dict[str, Any], name: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise DataError(f"{name}: the activation {shown(activation)} is not supported, only 'silu'")
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise DataError(
            f"{name}: weights quantised with {shown(method or 'unknown')} are not supported; use "
            "the unquantised model or a GGUF file"
        )
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise DataError(f"{name}: layer_types must be a list, not {shown(kinds)}")
    sliding = "sliding_attention" in kinds
    if config.get("use_sliding_window") or sliding:
        raise DataError(f"{name}: sliding-window attention is not supported")
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        raise DataError(
            f"{name}: mixture-of-experts models are not supported ({shown(experts)} experts)"
        )


def _eos_ids(name: str, *configs: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    for token in found:
        if not is_plain(token, int) or not 0 <= token <= LARGEST_SIZE:
            raise DataError(f"{name}: eos_token_id must be a token id, not {shown(token)}")
    return tuple(dict.fromkeys(found))
