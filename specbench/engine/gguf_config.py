"""Reads a model's shape from the metadata and tensor list of a GGUF file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor

from specbench.engine.gguf_file import ROPE_FACTORS, dequantised, open_gguf, value_of
from specbench.engine.hf_config import ARCHITECTURES, from_hf, unsupported_architecture
from specbench.engine.model_config import ModelConfig
from specbench.engine.rope_scaling import RopeScaling
from specbench.errors import DataError
from specbench.parsing import is_plain, shown

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
TIED_TOLERANCE = 0.1


def gguf_config(path: Path, name: str) -> ModelConfig:
    """The model's shape from the file's metadata.

    End tokens are the metadata's, and ``<|im_end|>`` and ``<|endoftext|>`` where the vocabulary
    has them. A model counts as tied when it stores no output matrix, or one that differs from the
    embedding by less than 10 % (the same matrix, quantised differently).

    Raises
    ------
    DataError
        An unreadable file, an unsupported architecture or feature, or missing metadata.
    """
    reader = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    architecture = str(value_of(reader, "general.architecture"))
    if architecture not in ARCHITECTURES.values():
        raise unsupported_architecture(name, shown(architecture))
    _refuse_unsupported(reader, architecture, name)
    for matrix in ("token_embd.weight", "output.weight"):
        if matrix in tensors and len(tensors[matrix].shape) != 2:
            raise DataError(f"{name}: the tensor {matrix} is no matrix")
    if "token_embd.weight" not in tensors:
        raise DataError(f"{name}: the file has no tensor token_embd.weight")

    def get(key: str) -> Any:
        return value_of(reader, f"{architecture}.{key}")

    head_dim = get("attention.key_length")
    if head_dim is None and architecture == "llama":
        head_dim = get("rope.dimension_count")
    heads, width = get("attention.head_count"), get("embedding_length")
    if head_dim is None and is_plain(heads, int) and is_plain(width, int) and heads > 0:
        head_dim = width // heads
    values = {
        "model_type": architecture,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(reader, architecture),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": _is_tied(tensors),
        "eos_token_id": _eos_ids(reader),
    }
    config = replace(
        from_hf(values, name),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
    )
    rotated = get("rope.dimension_count")
    if rotated not in (None, config.head_dim):
        raise DataError(
            f"{name}: RoPE over {shown(rotated)} of {config.head_dim} dimensions is not supported"
        )
    if ROPE_FACTORS in tensors:
        config = replace(config, rope_scaling=_stored_factors(tensors[ROPE_FACTORS], config))
    return config


def _refuse_unsupported(reader: GGUFReader, architecture: str, name: str) -> None:
    parts = value_of(reader, "split.count")
    if parts not in (None, 0, 1):
        raise DataError(
            f"{name} is one of {shown(parts)} parts: join them first (llama-gguf-split --merge)"
        )
    experts = value_of(reader, f"{architecture}.expert_count")
    if experts:
        raise DataError(
            f"{name}: mixture-of-experts models are not supported ({shown(experts)} experts)"
        )
    if value_of(reader, f"{architecture}.attention.sliding_window"):
        raise DataError(f"{name}: sliding-window attention is not supported")
    factor = value_of(reader, f"{architecture}.rope.scaling.attn_factor")
    if factor not in (None, 1.0):
        raise DataError(
            f"{name}: a RoPE attention factor of {shown(factor)} is not supported in GGUF"
        )


def _rope_scaling(reader: GGUFReader, architecture: str) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope"
    kind = value_of(reader, f"{prefix}.scaling.type")
    factor = value_of(reader, f"{prefix}.scaling.factor")
    factor = factor or value_of(reader, f"{prefix}.scale_linear")
    if kind is None and factor not in (None, 1.0):
        kind = "linear"
    if kind in (None, "none"):
        return None
    original = value_of(reader, f"{prefix}.scaling.original_context_length")
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}


def _stored_factors(tensor: ReaderTensor, config: ModelConfig) -> RopeScaling | None:
    factors = dequantised(tensor, tensor.data, config.name).reshape(-1)
    fine = np.isfinite(factors).all() and (factors > 0).all()
    if factors.size != config.head_dim // 2 or not fine:
        raise DataError(
            f"{config.name}: {ROPE_FACTORS} must hold {config.head_dim // 2} positive factors"
        )
    if (factors == 1).all():
        return config.rope_scaling
    if config.rope_scaling is not None:
        raise DataError(
            f"{config.name}: {ROPE_FACTORS} together with {config.rope_scaling.type} scaling is "
            "not supported"
        )
    return RopeScaling(
        "llama3",
        float(factors.max()),
        config.max_position_embeddings,
        freq_factors=tuple(float(factor) for factor in factors),
    )


def _is_tied(tensors: dict[str, ReaderTensor]) -> bool:
    embed, output = tensors["token_embd.weight"], tensors.get("output.weight")
    if output is None:
        return True
    if tuple(embed.shape) != tuple(output.shape):
        return False
    # Independent matrices differ by more than their own norm, so a sample of rows is enough.
    rows = np.unique(np.linspace(0, embed.shape[1] - 1, 2048).astype(np.int64))
    a = dequantised(embed, embed.data[rows], "token_embd.weight")
    b = dequantised(output, output.data[rows], "output.weight")
    return bool(np.linalg.norm(a - b) < TIED_TOLERANCE * np.linalg.norm(b))


def _eos_ids(reader: GGUFReader) -> list[int]:
    stated = (value_of(reader, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    found = [token for token in stated if token is not None]
    vocabulary = value_of(reader, "tokenizer.ggml.tokens")
    if not isinstance(vocabulary, list):
        return found
    return found + [vocabulary.index(token) for token in END_TOKENS if token in vocabulary]
