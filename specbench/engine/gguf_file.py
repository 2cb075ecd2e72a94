"""GGUF files of Llama, Qwen2 and Qwen3: configuration, and weights dequantised one by one."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from specbench.engine.model_config import (
    ARCHITECTURES,
    ModelConfig,
    from_hf,
    unsupported_architecture,
)
from specbench.engine.rope_scaling import RopeScaling
from specbench.engine.weights import EMBED, HEAD
from specbench.errors import DataError

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
TIED_TOLERANCE = 0.1

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path) -> GGUFReader:
    """The parsed file, its tensors mapped from disk; the last one parsed is kept.

    Raises
    ------
    DataError
        The file cannot be read, is no GGUF file, or is cut off.
    """
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"cannot read {path.name}: {error.strerror}") from error
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise DataError(
            f"{path.name} is not a readable GGUF file (damaged or cut off?): {error}"
        ) from error


@lru_cache(maxsize=1)
def _read(path: Path, size: int, modified: int) -> GGUFReader:
    return GGUFReader(path)


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
    architecture = str(_value(reader, "general.architecture"))
    if architecture not in ARCHITECTURES.values():
        raise unsupported_architecture(name, repr(architecture))
    if "token_embd.weight" not in tensors:
        raise DataError(f"{name}: the file has no tensor token_embd.weight")
    _refuse_unsupported(reader, architecture, name)

    def get(key: str) -> Any:
        return _value(reader, f"{architecture}.{key}")

    head_dim = get("attention.key_length")
    if head_dim is None and architecture == "llama":
        head_dim = get("rope.dimension_count")
    if head_dim is None and isinstance(get("attention.head_count"), int):
        head_dim = (get("embedding_length") or 0) // get("attention.head_count")
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
    if get("rope.dimension_count") not in (None, config.head_dim):
        raise DataError(
            f"{name}: RoPE over {get('rope.dimension_count')} of {config.head_dim} dimensions is "
            "not supported"
        )
    if _ROPE_FACTORS in tensors:
        config = replace(config, rope_scaling=_stored_factors(tensors[_ROPE_FACTORS], config))
    return config


def gguf_tensors(path: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every weight in float32 under its Hugging Face name; unknown names pass as they are.

    Llama's query and key rows, which GGUF stores in pairs for interleaved RoPE, are put back into
    the order of half-split RoPE. Of a tied model's two matrices the output one is taken, since
    files keep it the finer one.

    Raises
    ------
    DataError
        A quantisation that the `gguf` package cannot read.
    """
    reader = open_gguf(path)
    names = {tensor.name for tensor in reader.tensors}
    tied_twice = config.tie_word_embeddings and "output.weight" in names
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS or (tied_twice and tensor.name == "token_embd.weight"):
            continue
        weight = torch.from_numpy(_dequantised(tensor, tensor.data, config.name))
        match = _BLOCK.fullmatch(tensor.name)
        if match and config.architecture == "llama" and match[2] in ("attn_q", "attn_k"):
            heads = config.num_heads if match[2] == "attn_q" else config.num_kv_heads
            pairs = weight.view(heads, config.head_dim // 2, 2, *weight.shape[1:])
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        yield _hf_name(tensor.name, match), weight


def _hf_name(name: str, match: re.Match[str] | None) -> str:
    if match and match[2] in _NAMES:
        return f"model.layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"
    outside = {
        "token_embd.weight": EMBED,
        "output_norm.weight": "model.norm.weight",
        "output.weight": HEAD,
    }
    return outside.get(name, name)


def _value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _refuse_unsupported(reader: GGUFReader, architecture: str, name: str) -> None:
    experts = _value(reader, f"{architecture}.expert_count")
    if experts:
        raise DataError(f"{name}: mixture-of-experts models are not supported ({experts} experts)")
    if _value(reader, f"{architecture}.attention.sliding_window"):
        raise DataError(f"{name}: sliding-window attention is not supported")
    factor = _value(reader, f"{architecture}.rope.scaling.attn_factor")
    if factor not in (None, 1.0):
        raise DataError(f"{name}: a RoPE attention factor of {factor} is not supported in GGUF")


def _rope_scaling(reader: GGUFReader, architecture: str) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope"
    kind = _value(reader, f"{prefix}.scaling.type")
    factor = _value(reader, f"{prefix}.scaling.factor") or _value(reader, f"{prefix}.scale_linear")
    if kind is None and factor not in (None, 1.0):
        kind = "linear"
    if kind in (None, "none"):
        return None
    original = _value(reader, f"{prefix}.scaling.original_context_length")
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}


def _stored_factors(tensor: ReaderTensor, config: ModelConfig) -> RopeScaling | None:
    factors = _dequantised(tensor, tensor.data, config.name).reshape(-1)
    if factors.size != config.head_dim // 2 or not (factors > 0).all():
        raise DataError(
            f"{config.name}: {_ROPE_FACTORS} must hold {config.head_dim // 2} positive factors"
        )
    if (factors == 1).all():
        return config.rope_scaling
    if config.rope_scaling is not None:
        raise DataError(
            f"{config.name}: {_ROPE_FACTORS} together with {config.rope_scaling.type} scaling is "
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
    a = _dequantised(embed, embed.data[rows], "token_embd.weight")
    b = _dequantised(output, output.data[rows], "output.weight")
    return bool(np.linalg.norm(a - b) < TIED_TOLERANCE * np.linalg.norm(b))


def _dequantised(tensor: ReaderTensor, data: Any, name: str) -> np.ndarray:
    try:
        weight = dequantize(np.ascontiguousarray(data), tensor.tensor_type)
    except NotImplementedError as error:
        raise DataError(
            f"{name}: {tensor.name} is quantised as {tensor.tensor_type.name}, which the gguf "
            "package cannot read"
        ) from error
    # Torch refuses read-only arrays, which is what the mapped file gives for float32 tensors.
    return np.require(weight, np.float32, ["C", "W"])


def _eos_ids(reader: GGUFReader) -> list[int]:
    stated = (_value(reader, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    found = [int(token) for token in stated if token is not None]
    vocabulary = _value(reader, "tokenizer.ggml.tokens") or []
    return found + [vocabulary.index(token) for token in END_TOKENS if token in vocabulary]
