"""GGUF files: opening them, and their weights dequantised one by one."""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from specbench.engine.gguf_header import check_header
from specbench.engine.model_config import ModelConfig
from specbench.engine.weights import EMBED, HEAD
from specbench.errors import DataError

ROPE_FACTORS = "rope_freqs.weight"

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


def open_gguf(path: Path) -> GGUFReader:
    """The parsed file, its tensors mapped from disk; the last one parsed is kept.

    Raises
    ------
    DataError
        The file cannot be read, is no GGUF file, or is cut off; or a number in its header is not
        borne out by its size.
    """
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"cannot read {path.name}: {error.strerror}") from error
    except (ValueError, IndexError, KeyError, OverflowError, RuntimeError) as error:
        raise DataError(
            f"{path.name} is not a readable GGUF file (damaged or cut off?): {error}"
        ) from error


@lru_cache(maxsize=1)
def _read(path: Path, size: int, modified: int) -> GGUFReader:
    check_header(path)
    return GGUFReader(path)


def value_of(reader: GGUFReader, key: str) -> Any:
    """The metadata value under `key`, or `None`."""
    field = reader.get_field(key)
    return None if field is None else field.contents()


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
        if tensor.name == ROPE_FACTORS or (tied_twice and tensor.name == "token_embd.weight"):
            continue
        weight = torch.from_numpy(dequantised(tensor, tensor.data, config.name))
        match = _BLOCK.fullmatch(tensor.name)
        if match and config.architecture == "llama" and match[2] in ("attn_q", "attn_k"):
            heads = config.num_heads if match[2] == "attn_q" else config.num_kv_heads
            if weight.shape[0] == heads * config.head_dim:
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


def dequantised(tensor: ReaderTensor, data: Any, name: str) -> np.ndarray:
    """Rows `data` of `tensor` in float32, writable.

    Raises
    ------
    DataError
        A quantisation that the `gguf` package cannot read.
    """
    try:
        weight = dequantize(np.ascontiguousarray(data), tensor.tensor_type)
    except NotImplementedError as error:
        raise DataError(
            f"{name}: {tensor.name} is quantised as {tensor.tensor_type.name}, which the gguf "
            "package cannot read"
        ) from error
    # Torch refuses read-only arrays, which is what the mapped file gives for float32 tensors.
    return np.require(weight, np.float32, ["C", "W"])
