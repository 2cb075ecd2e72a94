"""Tiny random models of transformers, which ours are compared with."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def tiny_hf(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model whose every weight is random, norms and biases included, so that none may be lost."""
    config_class, model_class = FAMILIES[family]
    values = {**TINY, **({"head_dim": 16} if family == "qwen3" else {}), **changes}
    model = model_class(config_class(**values, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.3, generator=generator)
            if "norm" in name:
                weight.add_(1)
    return model


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """`folder`, holding the model's configuration and safetensors weights."""
    model.save_pretrained(folder, **options)
    return folder


@torch.no_grad()
def hf_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Logits `[R, Q, V]` of whole rows."""
    return model(tokens, use_cache=False).logits


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout: transformers' own norm would pass through float32."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    model.set_attn_implementation("sdpa")
    return model.double()


def relative_error(ours: Tensor, reference: Tensor) -> float:
    """Largest difference over the largest logit."""
    return ((ours - reference).abs().max() / reference.abs().max()).item()


def tokens(rows: int, length: int, vocab: int = 96, seed: int = 0) -> Tensor:
    """Random tokens `[rows, length]`."""
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(seed))
