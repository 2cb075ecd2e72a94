"""Where a draft comes from: a folder, the hub, this package, or random weights."""

from pathlib import Path

from specbench.engine.hub import download
from specbench.engine.source import Source
from specbench.errors import UsageError
from specbench.methods.longspec.weights import CONFIG, WEIGHTS

DUMMY = "dummy"
_SHIPPED = Path(__file__).parent / "shipped"


def locate_draft(spec: str | None, target: str) -> Source:
    """The draft that ``--draft-weights`` names, or the one that ships for `target`.

    Parameters
    ----------
    spec : str, optional
        A folder, a hub id, or ``dummy`` for random weights, which are for step times only.
    target : str
        The target's name, where `spec` is None.

    Raises
    ------
    UsageError
        No such folder, or nothing ships for `target`; says how to train one.
    DataError
        The hub cannot be reached or refuses.
    """
    if spec == DUMMY:
        return Source("dummy", DUMMY)
    if spec is None:
        folder = shipped(target)
        if folder is None:
            raise UsageError(
                f"longspec needs draft weights for {target}: name them with --draft-weights, or "
                f"train them with 'specbench train longspec --model {target} --data FOLDER'"
            )
        return Source("safetensors", folder.name, path=folder)
    path = Path(spec).expanduser()
    if path.is_dir():
        return Source("safetensors", path.resolve().name, path=path)
    if path.exists() or path.is_absolute() or spec.startswith((".", "~")) or spec.count("/") != 1:
        raise UsageError(
            f"--draft-weights {spec}: there is no such folder; a draft is a folder with {CONFIG} "
            f"and {WEIGHTS}, a hub id, or 'dummy' for random weights"
        )
    folder, commit = download(spec, None, (CONFIG,))
    return Source("safetensors", spec, path=folder, hub_id=spec, revision=commit)


def shipped(target: str) -> Path | None:
    """The folder in this package that holds a draft for the model called `target`, if any does."""
    name = target.rsplit("/", 1)[-1].lower()
    folders = sorted(_SHIPPED.iterdir()) if _SHIPPED.is_dir() else []
    # a GGUF file's name says its quantisation too: SmolLM2-135M-Instruct-Q8_0.gguf
    fitting = (
        f for f in folders if name == f.name or name.startswith((f"{f.name}-", f"{f.name}."))
    )
    return next(fitting, None)
