"""Loads a model by name: configuration, weights, tokenizer, and where they came from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specbench.engine.catalog import default_model
from specbench.engine.dummy import SHAPES, randomise
from specbench.engine.hf_config import from_hf
from specbench.engine.model import Transformer
from specbench.engine.model_config import ModelConfig
from specbench.engine.provenance import provenance
from specbench.engine.safetensors_folder import read_json, safetensors_tensors, weight_files
from specbench.engine.source import Source, locate
from specbench.engine.tokenizer import tokenizer_of
from specbench.engine.weights import fill
from specbench.errors import DataError, OutOfMemoryError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes
    ----------
    model : Transformer
    config : ModelConfig
    tokenizer : PreTrainedTokenizerBase or None
        `None` for random weights without tokenizer files.
    provenance : dict
        What a record says of the model: its name, revision, format, checksum, RoPE scaling, and
        whether its weights are random.
    """

    model: Transformer
    config: ModelConfig
    tokenizer: "PreTrainedTokenizerBase | None"
    provenance: dict[str, Any]


def read_model_config(
    spec: str, revision: str | None = None, rope_scaling: str | None = None
) -> ModelConfig:
    """The shape of the model named `spec`, without its weights.

    Parameters
    ----------
    spec : str
        Hub id, Hugging Face folder, .gguf file, alias, or ``dummy:<config>``.
    revision : str, optional
        Branch, tag or commit on the hub.
    rope_scaling : str, optional
        Override, as in ``yarn:4``.

    Raises
    ------
    UsageError, DataError
        See `specbench.engine.source.locate` and `specbench.engine.hf_config.from_hf`.
    """
    return config_of(locate(spec, revision), rope_scaling)


def describe_model(
    spec: str, revision: str | None = None, rope_scaling: str | None = None, seed: int = 0
) -> dict[str, Any]:
    """What a record says of the model named `spec`, without loading it (see `provenance`)."""
    source = locate(spec, revision)
    return provenance(source, config_of(source, rope_scaling), seed)


def load_model(
    spec: str | None,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    max_len: int,
    revision: str | None = None,
    rope_scaling: str | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load the model named `spec`.

    Parameters
    ----------
    spec : str, optional
        As for `read_model_config`; `None` is the device's default model.
    device, dtype
        Of the weights.
    max_len : int
        Positions that the model must reach (see `ModelConfig.check_context` for its limit).
    revision, rope_scaling : str, optional
        As for `read_model_config`.
    seed : int
        Of random weights.
    trust_remote_code : bool
        Run code that comes with the tokenizer; the model's is never run.

    Raises
    ------
    UsageError, DataError
        The model cannot be found, read or run.
    OutOfMemoryError
        The weights do not fit the device.
    """
    source = locate(spec or default_model(str(device)), revision)
    config = config_of(source, rope_scaling)
    tokenizer = tokenizer_of(source, trust_remote_code)
    if source.kind != "dummy":
        check_stored(source, config)
    try:
        model = Transformer(config, max_len, dtype, device)
        if source.kind == "dummy":
            randomise(model, seed)
        else:
            fill(model, tensors_of(source, config), config.name)
    except RuntimeError as error:
        # The CPU's allocator has no error class of its own.
        on_cpu = "can't allocate memory" in str(error)
        if not on_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise OutOfMemoryError(
            f"{config.name} needs {config.weight_bytes(dtype) / 2**30:.1f} GiB for its weights in "
            f"{str(dtype).removeprefix('torch.')}, which {device} does not have"
        ) from error
    return LoadedModel(model, config, tokenizer, provenance(source, config, seed))


def check_stored(source: Source, config: ModelConfig) -> None:
    """Refuse a configuration whose model could not be in the files, before memory is taken for it.

    Raises
    ------
    DataError
        The files hold fewer bits than weights.
    """
    files = [source.root] if source.kind == "gguf" else weight_files(source)
    size = sum(file.stat().st_size for file in files)
    if config.parameter_count() > 8 * size + 2**20:
        raise DataError(
            f"{config.name}: its configuration asks for {config.parameter_count():,} weights, and "
            f"its files have {size:,} bytes"
        )


def config_of(source: Source, rope_scaling: str | None) -> ModelConfig:
    """The shape of a model already located."""
    if source.kind == "gguf":
        from specbench.engine.gguf_config import gguf_config

        config = gguf_config(source.root, source.label)
    elif source.shape is not None:
        config = from_hf(SHAPES[source.shape], source.label)
    else:
        generation = source.root / "generation_config.json"
        config = from_hf(
            read_json(source.root / "config.json"),
            source.label,
            read_json(generation) if generation.is_file() else None,
        )
    return config if rope_scaling is None else config.with_rope_scaling(rope_scaling)


def tensors_of(source: Source, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Its weights under their Hugging Face names, one by one."""
    if source.kind == "safetensors":
        return safetensors_tensors(source)
    from specbench.engine.gguf_file import gguf_tensors

    return gguf_tensors(source.root, config)
