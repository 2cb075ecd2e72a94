"""A model as a Hugging Face folder, for engines that read nothing else: made once and cached."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.engine.hf_config import to_hf
from specbench.engine.loader import config_of, tensors_of
from specbench.engine.model_config import ModelConfig
from specbench.engine.provenance import checksum
from specbench.engine.safetensors_folder import read_json, weight_files
from specbench.engine.source import Source, locate
from specbench.engine.tokenizer import tokenizer_of
from specbench.errors import DataError

SHARD_BYTES = 4 * 2**30
_LAYOUT = 1  # part of a cached folder's name: raise it when what is written changes


def hf_folder(
    spec: str,
    dtype: torch.dtype,
    *,
    revision: str | None = None,
    rope_scaling: str | None = None,
    cache: Path | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """The model named `spec` as a folder with config.json and safetensors weights.

    A safetensors model is its own folder. Another RoPE scaling gives a folder with links to the
    weights and its own config.json; random weights a folder with a config.json alone; a GGUF file
    a folder of dequantised weights in `dtype`, equal to what `load_model` computes with.

    Parameters
    ----------
    spec, revision, rope_scaling
        As for `specbench.engine.loader.load_model`.
    dtype : torch.dtype
        Of weights that must be written, and of config.json there.
    cache : Path, optional
        Where folders are made; by default `cache_root()`.
    trust_remote_code : bool
        As for `load_model`.

    Raises
    ------
    UsageError, DataError
        The model cannot be found or read, the cache cannot be written to, or the model has a RoPE
        table that config.json cannot express.
    """
    source = locate(spec, revision)
    if source.kind == "safetensors" and rope_scaling is None:
        weight_files(source)
        return source.root.resolve()
    config = config_of(source, rope_scaling)
    key = json.dumps([_LAYOUT, checksum(source, 0), str(dtype), rope_scaling, config.name])
    name = f"{_plain(config.name)}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    folder = (cache or cache_root()) / "models" / name
    try:
        return (
            folder if folder.is_dir() else _make(folder, source, config, dtype, trust_remote_code)
        )
    except OSError as error:
        raise DataError(
            f"cannot write the model's Hugging Face folder {folder}: {error.strerror or error}; "
            "SPECBENCH_CACHE names another place"
        ) from error


def cache_root() -> Path:
    """``$SPECBENCH_CACHE``, or else `specbench` in the user's cache folder."""
    given = os.environ.get("SPECBENCH_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specbench"


def _make(
    folder: Path, source: Source, config: ModelConfig, dtype: torch.dtype, trust_remote_code: bool
) -> Path:
    """Written beside its place and renamed, so that a killed process leaves no half folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _write_config(part, source, config, dtype)
        if source.kind == "safetensors":
            for file in _linked(source):
                (part / file.name).symlink_to(file.resolve())
        elif source.kind == "gguf":
            _write_weights(part, tensors_of(source, config), dtype)
        tokenizer = tokenizer_of(source, trust_remote_code)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        part.chmod(0o755)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        return folder
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _linked(source: Source) -> list[Path]:
    index = source.root / "model.safetensors.index.json"
    return [*weight_files(source), *([index] if index.is_file() else [])]


def _write_config(folder: Path, source: Source, config: ModelConfig, dtype: torch.dtype) -> None:
    written = to_hf(config, dtype)
    if source.kind == "safetensors":
        own = read_json(source.root / "config.json")
        needed = ("model_type", "rope_theta", "rope_scaling")
        written = own | {key: written[key] for key in needed}
        written.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    generation = json.dumps({"eos_token_id": list(config.eos_ids)})
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")


def _write_weights(folder: Path, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Shards of at most `SHARD_BYTES` (one tensor at least), so that memory stays bounded."""
    from safetensors.torch import save_file

    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        name = f"model-{len(set(weight_map.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
        shard.clear()

    for key, tensor in tensors:
        size = tensor.numel() * dtype.itemsize
        held = sum(t.numel() for t in shard.values()) * dtype.itemsize
        if shard and held + size > SHARD_BYTES:
            flush()
        shard[key] = tensor.to(dtype).contiguous()
        total += size
    flush()
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=1)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in name)
