"""How a model stretches its rotary embedding, from its configuration or `--rope-scaling`."""

from dataclasses import dataclass
from typing import Any

from specbench.errors import DataError, UsageError
from specbench.parsing import is_plain, shown

SCALING_TYPES = ("linear", "dynamic", "yarn", "llama3")
OVERRIDES = ("linear", "dynamic", "yarn")
_LARGEST = 1e12
_LARGEST_FACTOR = 1024


@dataclass(frozen=True)
class RopeScaling:
    """One RoPE scaling, with the names and meanings that transformers gives its parameters.

    Attributes
    ----------
    type : str
        ``linear``, ``dynamic``, ``yarn`` or ``llama3``.
    factor : float
        How many times the original context the model holds.
    original_max_position : int
        Context in tokens before scaling.
    attention_factor, mscale, mscale_all_dim : float, optional
        YaRN's factor on cos and sin, or what it is computed from; all absent: 0.1 ln(factor) + 1.
    beta_fast, beta_slow, truncate
        YaRN's correction range.
    low_freq_factor, high_freq_factor : float
        Llama 3's wavelength bounds.
    freq_factors : tuple of float, optional
        Divisors of the inverse frequencies ``[head_dim / 2]``; where a file stores them (GGUF for
        Llama 3), they replace what the other fields would give.
    """

    type: str
    factor: float
    original_max_position: int
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    freq_factors: tuple[float, ...] | None = None

    def label(self) -> str:
        """The short form, such as ``yarn:4``."""
        return f"{self.type}:{self.factor:g}"


def parse_rope(config: dict[str, Any], name: str) -> tuple[float, RopeScaling | None]:
    """RoPE base and scaling of a Hugging Face configuration.

    Parameters
    ----------
    config : dict
        ``config.json``; either `rope_parameters` (transformers 5) or `rope_theta` and
        `rope_scaling` (before).
    name : str
        The model's name for messages.

    Raises
    ------
    DataError
        A scaling type or a partial rotary embedding that the engine does not have, or a parameter
        that is missing or no number.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise DataError(f"{name}: RoPE parameters must be an object, not {shown(given)}")
    values = dict(given)
    if any(isinstance(value, dict) for value in values.values()):
        raise DataError(f"{name}: RoPE parameters that differ between layers are not supported")
    theta = _number(values.get("rope_theta", config.get("rope_theta", 10000.0)), "rope_theta", name)
    partial = values.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise DataError(f"{name}: partial_rotary_factor {shown(partial)} is not supported, only 1")
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind not in SCALING_TYPES:
        raise DataError(
            f"{name}: RoPE scaling {shown(kind)} is not supported. Supported: default, "
            f"{', '.join(SCALING_TYPES)}."
        )
    return theta, _scaling(kind, values, config, name)


def rope_to_hf(scaling: RopeScaling | None, name: str) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a configuration, which `parse_rope` reads back.

    Raises
    ------
    DataError
        The scaling is a table of frequency factors, which has no form in a configuration.
    """
    if scaling is None:
        return None
    if scaling.freq_factors is not None:
        raise DataError(
            f"{name}: the file stores its RoPE frequencies as a table, which a Hugging Face "
            "configuration cannot express; name the model's safetensors folder or hub id instead"
        )
    values: dict[str, Any] = {"rope_type": scaling.type, "factor": scaling.factor}
    if scaling.type in ("yarn", "llama3"):
        values["original_max_position_embeddings"] = scaling.original_max_position
    if scaling.type == "llama3":
        values["low_freq_factor"] = scaling.low_freq_factor
        values["high_freq_factor"] = scaling.high_freq_factor
    if scaling.type == "yarn":
        values |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        values["truncate"] = scaling.truncate
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(scaling, key) is not None:
                values[key] = getattr(scaling, key)
    return values


def parse_override(
    text: str, max_position: int, present: RopeScaling | None, name: str
) -> RopeScaling:
    """The scaling that ``--rope-scaling TYPE:FACTOR[:ORIGINAL]`` asks for.

    Parameters
    ----------
    text : str
        Such as ``yarn:4``, or ``yarn:4:32768`` to give the original context as well.
    max_position : int
        The model's context before scaling, where neither `text` nor `present` gives it.
    present : RopeScaling, optional
        What the model's own configuration has; its original context is kept.
    name : str
        The model's name for messages.

    Raises
    ------
    UsageError
        Another form or type, a factor below 1, or a model trained with Llama 3 scaling.
    """
    kind, *rest = text.split(":")
    if kind not in OVERRIDES or len(rest) not in (1, 2):
        forms = ", ".join(f"{known}:FACTOR" for known in OVERRIDES)
        raise UsageError(f"--rope-scaling {text!r}: expected one of {forms}")
    try:
        factor = float(rest[0])
        original = int(rest[1]) if len(rest) == 2 else None
    except ValueError as error:
        raise UsageError(f"--rope-scaling {text!r}: {error}") from error
    if not 1 <= factor <= _LARGEST_FACTOR or (original is not None and original < 1):
        raise UsageError(f"--rope-scaling {text!r}: the factor must be between 1 and 1024")
    if present is not None and present.type == "llama3":
        raise UsageError(
            f"--rope-scaling {text!r}: {name} was trained with llama3 scaling, which another one "
            "would undo; leave the option out"
        )
    if original is None:
        original = present.original_max_position if present else max_position
    return RopeScaling(kind, factor, original)


def _scaling(kind: str, values: dict[str, Any], config: dict[str, Any], name: str) -> RopeScaling:
    max_position = int(config["max_position_embeddings"])
    original = max_position
    if kind in ("yarn", "llama3"):
        given = config.get("original_max_position_embeddings")
        given = given or values.get("original_max_position_embeddings")
        key = "original_max_position_embeddings"
        original = int(_number(given or max_position, key, name))
        if original < 1:
            raise DataError(f"{name}: RoPE parameter {key} must be at least 1, not {shown(given)}")
    factor = values.get("factor")
    if factor is None and kind == "yarn":
        factor = max_position / original
    optional: dict[str, Any] = {
        key: _number(values[key], key, name)
        for key in ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
        if values.get(key) is not None
    }
    if kind == "llama3":
        for key in ("low_freq_factor", "high_freq_factor"):
            optional[key] = _number(values.get(key), key, name)
    factor = _number(factor, "factor", name)
    if factor > _LARGEST_FACTOR:
        raise DataError(f"{name}: RoPE parameter factor is {factor:g}, above {_LARGEST_FACTOR}")
    return RopeScaling(
        kind,
        factor,
        original,
        truncate=bool(values.get("truncate", True)),
        **optional,
    )


def _number(value: object, key: str, name: str) -> float:
    if not is_plain(value, (int, float)) or not 0 < value <= _LARGEST:  # type: ignore[operator]
        raise DataError(
            f"{name}: RoPE parameter {key} must be a positive number, not {shown(value)}"
        )
    return float(value)  # type: ignore[arg-type]
