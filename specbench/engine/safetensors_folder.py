"""Hugging Face folders: JSON files and safetensors weights, in one file or in shards."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from specbench.engine.hub import download
from specbench.engine.source import Source
from specbench.errors import DataError
from specbench.parsing import parse_json, shown

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")


def weight_files(source: Source) -> list[Path]:
    """The safetensors files of a folder or hub model, downloaded where they must be.

    Raises
    ------
    DataError
        No safetensors weights, or a shard that the index names is missing.
    """
    index = source.root / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise DataError(f"{source.label}: {index.name} has no 'weight_map'")
        for name in weight_map.values():
            if not isinstance(name, str) or not _FILE.fullmatch(name):
                raise DataError(
                    f"{source.label}: {index.name} names {shown(name)}, which is outside the "
                    "model's folder or no safetensors file"
                )
        names = sorted(set(weight_map.values()))
    folder = source.root
    if source.hub_id is not None:
        folder, _ = download(source.hub_id, source.revision, tuple(names))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and index.is_file():
        raise DataError(f"{source.label}: {index.name} names files that are missing: {missing}")
    if missing:
        raise DataError(
            f"{source.label} has no model.safetensors: only safetensors weights are read (convert "
            "others with transformers' save_pretrained)"
        )
    return [folder / name for name in names]


def safetensors_tensors(source: Source) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its name in the checkpoint, read one by one.

    Raises
    ------
    DataError
        See `weight_files`; or a file that is damaged.
    """
    from safetensors import SafetensorError, safe_open

    for file in weight_files(source):
        try:
            with safe_open(file, framework="pt") as content:
                for key in content.keys():  # noqa: SIM118 - safe_open is no mapping
                    yield key, content.get_tensor(key)
        except OSError as error:
            raise DataError(
                f"{source.label}: cannot read {file.name}: {error.strerror or error}"
            ) from error
        # what the library raises of damaged files, torch of shapes, and both of unknown types
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise DataError(
                f"{source.label}: {file.name} is not a readable safetensors file (damaged or cut "
                f"off?): {error}"
            ) from error


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`.

    Raises
    ------
    DataError
        The file cannot be read or holds something else.
    """
    try:
        content = parse_json(file.read_bytes(), finite=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {file.parent.name}/{file.name}: {reason}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file.parent.name}/{file.name} must hold a JSON object")
    return content
