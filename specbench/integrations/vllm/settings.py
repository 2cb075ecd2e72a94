"""The plug-in's settings: from ``--additional-config``, or a YAML file such as tuned.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.methods.magicdec.stream import StreamParameters
from specbench.methods.vegas import VegasParameters
from specbench.parsing_yaml import parse_yaml
from specbench.registry import unknown

KEY = "specbench"
METHODS: dict[str, type[VegasParameters] | type[StreamParameters]] = {
    "vegas": VegasParameters,
    "magicdec": StreamParameters,
}
_OWN = ("graphs", "log_seconds", "stats")


@dataclass(frozen=True)
class Settings:
    """What the drafter does.

    Attributes
    ----------
    method : {"vegas", "magicdec"}
    parameters : VegasParameters or StreamParameters
        With vLLM's ``num_speculative_tokens`` as gamma.
    graphs : bool
        Replay the drafts as CUDA graphs, where there is a CUDA device.
    log_seconds : float
        Between two lines of figures in vLLM's log; 0 for none.
    stats : Path or None
        Where the same figures are kept as JSON.
    """

    method: str
    parameters: VegasParameters | StreamParameters
    graphs: bool = True
    log_seconds: float = 10.0
    stats: Path | None = None


def read_settings(vllm_config: Any) -> Settings:
    """The settings that vLLM was started with.

    ``--additional-config '{"specbench": {"kept_ratio": 0.05}}'`` holds them, or the path of a YAML
    file. Of a file's keys, those of `specbench run` that are no setting of the method are left.

    Raises
    ------
    UsageError
        A key or value that the method does not have, or a gamma that is not vLLM's.
    """
    given = getattr(vllm_config, "additional_config", None)
    given = given.get(KEY, {}) if isinstance(given, dict) else {}
    if isinstance(given, str):
        values = _from_file(Path(given))
    elif isinstance(given, dict) and isinstance(given.get("config"), str):
        beside = {key: value for key, value in given.items() if key != "config"}
        values = _from_file(Path(given["config"])) | beside
    else:
        values = given
    if not isinstance(values, dict):
        raise UsageError(f"--additional-config: {KEY} must be an object or a path, not {values!r}")
    return _settings(dict(values), vllm_config.speculative_config.num_speculative_tokens)


def _settings(values: dict[str, Any], gamma: int) -> Settings:
    method = values.pop("method", "vegas")
    if isinstance(method, list):
        found = [name for name in method if name in METHODS]
        method = found[0] if len(found) == 1 else ", ".join(map(str, method))
    if method not in METHODS:
        raise unknown("method of the vLLM plug-in", str(method), list(METHODS))
    kind = METHODS[method]
    if values.setdefault("gamma", gamma) != gamma:
        raise UsageError(
            f"gamma is {values['gamma']} here and num_speculative_tokens {gamma} in "
            "--speculative-config: give both the same value"
        )
    own = {name: values.pop(name) for name in _OWN if name in values}
    for name in map(str, values):
        if name not in kind.model_fields:
            raise unknown(f"setting of {method}", name, [*kind.model_fields, *_OWN])
    if kind is VegasParameters:
        values.setdefault("normaliser", "exact")
        values.setdefault("queries", "first+last")
    try:
        parameters = kind(**values)
    except ValidationError as error:
        detail = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()
        )
        raise UsageError(f"--additional-config: {detail}") from error
    check_parameters(parameters)
    if own.get("stats") is not None:
        own["stats"] = Path(own["stats"])
    return Settings(method, parameters, **own)


def check_parameters(parameters: VegasParameters | StreamParameters) -> None:
    """Refuse what the engine has and the plug-in does not.

    Raises
    ------
    UsageError
        With what to use instead.
    """
    name, value, instead = "", "", ""
    if parameters.gamma < 1:
        name, value, instead = "gamma", str(parameters.gamma), "at least 1"
    elif isinstance(parameters, StreamParameters):
        if parameters.positions != "absolute":
            name, value, instead = "positions", parameters.positions, "absolute"
    elif parameters.queries == "all":
        name, value, instead = "queries", "all", "first+last or last"
    elif parameters.score == "random":
        name, value, instead = "score", "random", "weight or logit"
    elif parameters.normaliser != "exact":
        name, value, instead = "normaliser", parameters.normaliser, "exact"
    if name:
        raise UsageError(f"{name} {value} is not offered inside vLLM: use {instead}")


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold keys and values")
    settings = set(_OWN) | {"method"}
    for kind in METHODS.values():
        settings |= set(kind.model_fields)
    return {k: v for k, v in values.items() if k in settings or k not in RunConfig.model_fields}
