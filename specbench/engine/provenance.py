"""Where a model came from: what a run's record says of it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from specbench.engine.dummy import SHAPES
from specbench.engine.model_config import ModelConfig
from specbench.engine.safetensors_folder import read_json, weight_files
from specbench.engine.source import Source
from specbench.errors import DataError


def provenance(source: Source, config: ModelConfig, seed: int) -> dict[str, Any]:
    """The record's entry on a model.

    Parameters
    ----------
    source : Source
        Where it was found.
    config : ModelConfig
        Its shape, RoPE override included.
    seed : int
        Of random weights.

    Returns
    -------
    dict
        ``checkpoint_sha256`` covers configuration, headers, sizes and the last MiB of every
        weight file, so that it costs no second read of the weights.
    """
    scaling = config.rope_scaling
    return {
        "spec": source.label,
        "revision": source.revision,
        "architecture": config.architecture,
        "format": source.kind,
        "checkpoint_sha256": checksum(source, seed),
        "dummy": source.kind == "dummy",
        "parameters": config.parameter_count(),
        "rope_scaling": None if scaling is None else scaling.label(),
        "context_length": config.context_length,
    }


def checksum(source: Source, seed: int) -> str:
    """What tells a checkpoint from others, without reading all of its weights.

    Raises
    ------
    DataError
        Weights that are missing, or of a format that cannot be.
    """
    digest = hashlib.sha256()
    if source.kind == "dummy":
        shape = SHAPES[source.shape] if source.shape else read_json(source.root / "config.json")
        digest.update(json.dumps([shape, seed], sort_keys=True).encode())
        return digest.hexdigest()
    if source.kind == "gguf":
        from specbench.engine.gguf_file import open_gguf

        _add_file(digest, source.root, open_gguf(source.root).data_offset)
        return digest.hexdigest()
    digest.update((source.root / "config.json").read_bytes())
    for file in weight_files(source):
        with file.open("rb") as content:
            header = 8 + int.from_bytes(content.read(8), "little")
        if header > file.stat().st_size:
            raise DataError(
                f"{source.label}: {file.name} is not a readable safetensors file: its header would "
                f"have {header:,} bytes of {file.stat().st_size:,}"
            )
        _add_file(digest, file, header)
    return digest.hexdigest()


def _add_file(digest: "hashlib._Hash", file: Path, header: int) -> None:
    size = file.stat().st_size
    digest.update(f"{file.suffix} {size}\n".encode())
    with file.open("rb") as content:
        digest.update(content.read(header))
        # The last weights tell apart checkpoints that share their layout.
        content.seek(max(header, size - 2**20))
        digest.update(content.read())
