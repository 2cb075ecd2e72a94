"""A draft's weights on disk: safetensors under the names that LongSpec's authors use."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.engine.safetensors_folder import read_json, safetensors_tensors, weight_files
from specbench.engine.source import Source
from specbench.errors import DataError
from specbench.files import write_atomically
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.config import DraftConfig

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
# What the authors' training wraps a draft in, and what their files hold beside what is used.
_PREFIXES = ("draft_model.", "glide.")
_UNUSED = ("cross_attn.k_proj.", "cross_attn.v_proj.")


def slots(block: DraftBlock) -> dict[str, Tensor]:
    """Checkpoint names of all weights, and the part of `block` that each one fills."""
    return dict(_slots(block))


def _slots(block: DraftBlock) -> Iterator[tuple[str, Tensor]]:
    config = block.config
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    yield "input_layernorm.weight", block.self_norm
    yield "post_self_attention_layernorm.weight", block.cross_norm
    yield "post_cross_attention_layernorm.weight", block.mlp_norm
    for kind, fused in (("weight", block.qkv), ("bias", block.qkv_bias)):
        for part, rows in zip("qkv", fused.split((q, kv, kv)), strict=True):
            yield f"self_attn.{part}_proj.{kind}", rows
    yield "self_attn.o_proj.weight", block.o
    yield "cross_attn.q_proj.weight", block.cross_q
    yield "cross_attn.q_proj.bias", block.cross_q_bias
    yield "cross_attn.o_proj.weight", block.cross_o
    for kind, gate_up, down in (
        ("weight", block.gate_up, block.down),
        ("bias", block.gate_up_bias, block.down_bias),
    ):
        if gate_up is not None and down is not None:
            gate, up = gate_up.split(inner)
            yield f"mlp.gate_proj.{kind}", gate
            yield f"mlp.up_proj.{kind}", up
            yield f"mlp.down_proj.{kind}", down


def fill(block: DraftBlock, tensors: Iterable[tuple[str, Tensor]], label: str) -> None:
    """Copy every tensor to its place, with conversion to the block's dtype and device.

    Cross-attention's key and value projections, which published files hold and nothing reads, are
    passed over.

    Raises
    ------
    DataError
        Tensors that are missing, unexpected, of another shape or not finite, each by its name.
    """
    places, filled, unexpected = slots(block), set[str](), list[str]()
    for stored, tensor in tensors:
        name = _plain(stored)
        if name not in places:
            if not name.startswith(_UNUSED):
                unexpected.append(stored)
            continue
        place = places[name]
        if tensor.shape != place.shape:
            raise DataError(
                f"draft {label}: the tensor {stored} has shape {list(tensor.shape)}, but its "
                f"configuration asks for {list(place.shape)}"
            )
        if not tensor.isfinite().all():
            raise DataError(f"draft {label}: the tensor {stored} holds NaN or infinite values")
        with torch.no_grad():
            place.copy_(tensor)
        filled.add(name)
    for kind, names in (("missing", sorted(places.keys() - filled)), ("unexpected", unexpected)):
        if names:
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise DataError(f"draft {label}: {len(names)} tensors {kind}: {shown}")


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def read_config(folder: Path, label: str) -> DraftConfig:
    """The configuration of the draft in `folder`.

    Raises
    ------
    DataError
        It is missing or unreadable.
    """
    if not (folder / CONFIG).is_file():
        raise DataError(
            f"draft {label} has no {CONFIG}: name the folder that holds it and {WEIGHTS}, as "
            "'specbench train longspec' writes them"
        )
    return DraftConfig.from_json(read_json(folder / CONFIG), label)


def load(source: Source, dtype: torch.dtype, device: torch.device | str) -> DraftBlock:
    """The draft that `source` has, ready to run.

    Raises
    ------
    DataError
        See `read_config` and `fill`; or no safetensors weights.
    """
    config = read_config(source.root, source.label)
    size = sum(file.stat().st_size for file in weight_files(source))
    if config.parameter_count() > 8 * size + 2**20:
        raise DataError(
            f"draft {source.label}: its configuration asks for {config.parameter_count():,} "
            f"weights, and its files have {size:,} bytes"
        )
    block = DraftBlock(config, dtype, device)
    fill(block, safetensors_tensors(source), source.label)
    return block


def checksum(source: Source) -> str:
    """SHA-256 of the weights that `source` has, all files one after another.

    Raises
    ------
    DataError
        No safetensors weights.
    """
    digest = hashlib.sha256()
    for file in weight_files(source):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def save(
    block: DraftBlock,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    record: dict[str, Any] | None = None,
) -> None:
    """Write a draft that `load` reads; what stood there before is replaced only when all is done.

    Parameters
    ----------
    block : DraftBlock
    folder : Path
        Made where it is missing.
    dtype : torch.dtype
        Of the stored weights.
    record : dict, optional
        How it was trained, written as training.json.

    Raises
    ------
    SpecbenchError
        The disk is full or refuses; nothing was replaced.
    """
    from safetensors.torch import save as to_bytes

    tensors = {
        name: part.detach().to("cpu", dtype).contiguous() for name, part in slots(block).items()
    }
    files = {WEIGHTS: to_bytes(tensors, {"format": "pt"}), CONFIG: _json(block.config.to_json())}
    if record is not None:
        files["training.json"] = _json(record)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
