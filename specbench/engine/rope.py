"""Rotary position embedding: inverse frequencies for each scaling, and the cos and sin tables."""

import math

import torch
from torch import Tensor

from specbench.engine.model_config import ModelConfig
from specbench.engine.rope_scaling import RopeScaling


def build_rope(
    config: ModelConfig,
    max_len: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin for the positions 0 to `max_len` - 1.

    Parameters
    ----------
    config : ModelConfig
        Gives base, head dimension and scaling.
    max_len : int
        Positions in the tables. The `dynamic` scaling is fixed at this length for the whole run
        (a base that moved while a request grows would invalidate the keys already cached).
    device, dtype
        Where and in which type the tables are kept; they are computed in float32.

    Returns
    -------
    cos, sin : Tensor
        ``[max_len, head_dim]``, the two halves equal, YaRN's attention factor multiplied in.
    """
    inv_freq, attention_factor = inverse_frequencies(config, max_len)
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    return cos.to(device, dtype), sin.to(device, dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Heads rotated to their positions.

    Parameters
    ----------
    x : Tensor
        ``[..., heads, head_dim]``, not rotated.
    cos, signed_sin : Tensor
        ``[..., head_dim]``, rows of the tables, the first half of the sine's negated.

    Returns
    -------
    Tensor
        Of the shape and type of `x`.
    """
    cos, sin = cos.unsqueeze(-2), signed_sin.unsqueeze(-2)
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


def inverse_frequencies(config: ModelConfig, max_len: int) -> tuple[Tensor, float]:
    """Inverse frequencies ``[head_dim / 2]`` in float32, and the factor on cos and sin.

    Raises
    ------
    ValueError
        `freq_factors` of another length than head_dim / 2.

    Notes
    -----
    linear: Chen et al. 2023, "Extending Context Window via Positional Interpolation"; dynamic:
    NTK-aware scaling of the base as in transformers; yarn: Peng et al. 2023, "YaRN"; llama3: the
    wavelength-dependent scaling of Llama 3.1's release.
    """
    dim, scaling, base = config.head_dim, config.rope_scaling, config.rope_theta
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    if scaling is None:
        return 1.0 / base**exponents, 1.0
    if scaling.type == "dynamic":
        length = max(max_len, scaling.original_max_position)
        stretch = scaling.factor * length / scaling.original_max_position - (scaling.factor - 1)
        return 1.0 / (base * stretch ** (dim / (dim - 2))) ** exponents, 1.0
    inv_freq = 1.0 / base**exponents
    if scaling.type == "linear":
        return inv_freq / scaling.factor, 1.0
    if scaling.type == "yarn":
        return _yarn(scaling, inv_freq, base, dim), _yarn_attention_factor(scaling)
    return _llama3(scaling, inv_freq), 1.0


def _yarn(scaling: RopeScaling, inv_freq: Tensor, base: float, dim: int) -> Tensor:
    def dimension(rotations: float) -> float:
        wavelengths = scaling.original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(wavelengths) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)


def _llama3(scaling: RopeScaling, inv_freq: Tensor) -> Tensor:
    if scaling.freq_factors is not None:
        factors = torch.tensor(scaling.freq_factors, dtype=torch.float32)
        if factors.shape != inv_freq.shape:
            raise ValueError(f"{len(factors)} RoPE factors for {len(inv_freq)} frequencies")
        return inv_freq / factors
    turns = scaling.original_max_position * inv_freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
