"""Puts named checkpoint tensors into the fused parameters of a `Transformer`, one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.model import Layer, Transformer
from specbench.errors import DataError

HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Slot:
    """Where a checkpoint tensor of `shape` goes; `target` may broadcast it."""

    target: Tensor
    shape: tuple[int, ...]


def fill(model: Transformer, tensors: Iterable[tuple[str, Tensor]], name: str) -> None:
    """Copy every tensor to its place, with conversion to the model's dtype and device.

    Parameters
    ----------
    model : Transformer
        Its parameters are overwritten.
    tensors : iterable of (str, Tensor)
        Names as in a Hugging Face checkpoint. One tensor is held at a time.
    name : str
        The model's name for messages.

    Raises
    ------
    DataError
        Tensors that are missing, unexpected, of another shape, or given twice, each by its name;
        or a tied model that stores an output matrix unlike its embedding.
    """
    slots = weight_slots(model)
    filled: set[str] = set()
    unexpected: list[str] = []
    for key, tensor in tensors:
        slot = slots.get(key)
        if slot is None:
            # Old checkpoints store this buffer, which the model computes from its configuration.
            if not key.endswith("rotary_emb.inv_freq"):
                unexpected.append(key)
            continue
        if key in filled:
            raise DataError(f"{name}: the tensor {key} is stored twice")
        if tuple(tensor.shape) != slot.shape:
            raise DataError(
                f"{name}: the tensor {key} has shape {list(tensor.shape)}, but the configuration "
                f"asks for {list(slot.shape)}"
            )
        tied = model.config.tie_word_embeddings and key in (HEAD, EMBED)
        if tied and filled & {HEAD, EMBED}:
            _check_tied(slot.target, tensor, name)
        slot.target.copy_(tensor)
        filled.add(key)
    if model.config.tie_word_embeddings and filled & {HEAD, EMBED}:
        filled |= {HEAD, EMBED}
    missing = [key for key in slots if key not in filled]
    if missing or unexpected:
        raise DataError(f"{name}: {_complaint(missing, unexpected)}")


def weight_slots(model: Transformer) -> dict[str, Slot]:
    """Checkpoint names of all weights, and the part of the model that each one fills."""
    slots = {
        EMBED: Slot(model.embed, tuple(model.embed.shape)),
        "model.norm.weight": Slot(model.final_norm, tuple(model.final_norm.shape)),
        HEAD: Slot(model.head, tuple(model.head.shape)),
    }
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        for key, slot in _layer_slots(model, layer):
            slots[f"model.layers.{index}.{key}"] = slot
    return slots


def _layer_slots(model: Transformer, layer: Layer) -> Iterator[tuple[str, Slot]]:
    config = model.config
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    fused = (
        ("self_attn", ("q_proj", "k_proj", "v_proj"), (q, kv, kv), layer.qkv, layer.qkv_bias),
        ("self_attn", ("o_proj",), (config.hidden_size,), layer.o, layer.o_bias),
        ("mlp", ("gate_proj", "up_proj"), (inner, inner), layer.gate_up, layer.gate_up_bias),
        ("mlp", ("down_proj",), (config.hidden_size,), layer.down, layer.down_bias),
    )
    for block, parts, rows, weight, bias in fused:
        for kind, parameter in (("weight", weight), ("bias", bias)):
            if parameter is None:
                continue
            for part, target in zip(parts, parameter.split(rows), strict=True):
                yield f"{block}.{part}.{kind}", Slot(target, tuple(target.shape))
    yield "input_layernorm.weight", Slot(layer.attn_norm, tuple(layer.attn_norm.shape))
    yield "post_attention_layernorm.weight", Slot(layer.mlp_norm, tuple(layer.mlp_norm.shape))
    if layer.qk_norm is not None:
        heads = layer.qk_norm.split((config.num_heads, config.num_kv_heads))
        for part, target in zip(("q_norm", "k_norm"), heads, strict=True):
            yield f"self_attn.{part}.weight", Slot(target, (config.head_dim,))


def _check_tied(present: Tensor, tensor: Tensor, name: str) -> None:
    if not torch.equal(present, tensor.to(present.device, present.dtype)):
        raise DataError(
            f"{name}: the configuration ties {HEAD} to {EMBED}, but the two are stored with "
            "different values; set tie_word_embeddings to false in config.json if they are "
            "meant to differ"
        )


def _complaint(missing: list[str], unexpected: list[str]) -> str:
    parts = []
    for label, keys in (("missing", missing), ("unexpected", unexpected)):
        if keys:
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            parts.append(f"{len(keys)} tensors {label} ({shown})")
    return "the weights do not fit the configuration: " + "; ".join(parts)
