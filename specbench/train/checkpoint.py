"""Checkpoints: weights and AdamW's moments in one safetensors file that is replaced as a whole."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import DataError
from specbench.files import write_atomically
from specbench.methods.longspec.block import DraftBlock
from specbench.parsing import is_plain, parse_json, shown

CHECKPOINT = "checkpoint.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "tokens": int,
    "seconds": (int, float),
}


def save_checkpoint(
    folder: Path, block: DraftBlock, optimizer: torch.optim.AdamW, state: dict[str, Any]
) -> None:
    """Replace the checkpoint of `folder`, after which the step ``state["step"]`` is the next.

    Raises
    ------
    SpecbenchError
        The disk is full or refuses; the checkpoint before is intact.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, parameter in block.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach().cpu()
        for moment in _MOMENTS:
            held = optimizer.state.get(parameter)
            tensors[f"{moment}.{name}"] = (
                torch.zeros_like(parameter, device="cpu") if not held else held[moment].cpu()
            )
    write_atomically(folder / CHECKPOINT, save(tensors, {"state": json.dumps(state)}))


def _state(text: str) -> dict[str, Any]:
    """The state of a training, its counts whole and not negative.

    Raises
    ------
    ValueError
        It is something else.
    """
    state = parse_json(text)
    if not isinstance(state, dict):
        raise ValueError("its state is no object")
    for name, kind in _STATE.items():
        value = state.get(name)
        if not is_plain(value, kind) or not 0 <= value < 2**53:  # type: ignore[operator]
            raise ValueError(f"its {name} cannot be {shown(value)}")
    return state


def load_checkpoint(
    folder: Path, block: DraftBlock, optimizer: torch.optim.AdamW
) -> dict[str, Any]:
    """Put the checkpoint of `folder` into `block` and `optimizer`; returns its state.

    Raises
    ------
    DataError
        It cannot be read, or is that of another block.
    """
    from safetensors import SafetensorError, safe_open

    file = folder / CHECKPOINT
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(file, framework="pt") as content:
            state = _state((content.metadata() or {})["state"])
            for key in content.keys():  # noqa: SIM118 - safe_open is no mapping
                tensors[key] = content.get_tensor(key)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{file} is no readable checkpoint: {error}") from error
    moments: dict[int, dict[str, Tensor]] = {}
    parameters = dict(block.named_parameters())
    places = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(places)}
    for name, parameter in parameters.items():
        stored = tensors.get(f"weight.{name}")
        held = [stored, *(tensors.get(f"{moment}.{name}") for moment in _MOMENTS)]
        if any(tensor is None or tensor.shape != parameter.shape for tensor in held):
            raise DataError(f"{file} is a checkpoint of another draft: {name} does not fit")
        if not all(bool(tensor.isfinite().all()) for tensor in held if tensor is not None):
            raise DataError(f"{file} holds NaN or infinite values: {name}")
        assert stored is not None
        with torch.no_grad():
            parameter.copy_(stored)
        moments[numbers[id(parameter)]] = {
            "step": torch.tensor(float(state["step"])),
            **{moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS},
        }
    if state["step"]:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return state
