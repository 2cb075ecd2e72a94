"""RoPE tables against transformers' inverse frequencies, and the parsing of scalings."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specbench.engine.hf_config import from_hf
from specbench.engine.model_config import ModelConfig
from specbench.engine.rope import build_rope, inverse_frequencies
from specbench.engine.rope_scaling import RopeScaling
from specbench.errors import DataError, UsageError

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}


def config_with(rope: dict[str, Any] | None = None, theta: float = 10000.0) -> ModelConfig:
    return from_hf({**SHAPE, "rope_theta": theta, "rope_scaling": rope}, "test")


@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False},
        LLAMA3,
    ],
)
@pytest.mark.parametrize("length", [1000, 20000])
def test_frequencies_equal_transformers(rope: dict[str, Any], theta: float, length: int) -> None:
    reference = LlamaConfig(**SHAPE, rope_parameters={"rope_theta": theta, **rope})
    expected, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](reference, "cpu", seq_len=length)
    result, ours = inverse_frequencies(config_with(rope, theta), length)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)
    assert ours == pytest.approx(factor, rel=1e-12)


def test_tables_hold_every_position() -> None:
    config = config_with()
    cos, sin = build_rope(config, 50, "cpu")
    assert cos.shape == sin.shape == (50, 64)
    assert cos.dtype == torch.float32
    frequency = 10000.0 ** (-2 * 3 / 64)
    for column in (3, 3 + 32):
        assert cos[17, column].item() == pytest.approx(torch.tensor(17 * frequency).cos().item())
        assert sin[17, column].item() == pytest.approx(torch.tensor(17 * frequency).sin().item())


def test_yarn_multiplies_its_attention_factor_into_the_tables() -> None:
    cos, sin = build_rope(config_with({"rope_type": "yarn", "factor": 4.0}), 8, "cpu")
    assert (cos**2 + sin**2).sqrt().flatten().tolist() == pytest.approx([1.1386294] * 512)


def test_tables_in_double_hold_the_float32_values() -> None:
    single, double = (
        build_rope(config_with(), 9, "cpu", d)[0] for d in (torch.float, torch.double)
    )
    assert torch.equal(single.double(), double)


def test_stored_factors_divide_the_frequencies() -> None:
    scaling = RopeScaling("llama3", 8.0, 4096, freq_factors=tuple(float(i + 1) for i in range(32)))
    result, _ = inverse_frequencies(replace(config_with(), rope_scaling=scaling), 10)
    plain, _ = inverse_frequencies(config_with(), 10)
    torch.testing.assert_close(result * torch.arange(1, 33), plain)
    short = replace(scaling, freq_factors=(1.0,))
    with pytest.raises(ValueError, match="1 RoPE factors for 32"):
        inverse_frequencies(replace(config_with(), rope_scaling=short), 10)


def test_both_styles_of_configuration_mean_the_same() -> None:
    new = {**SHAPE, "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}
    old = {**SHAPE, "rope_theta": 500000.0, "rope_scaling": LLAMA3}
    older = {
        **old,
        "rope_scaling": {("type" if k == "rope_type" else k): v for k, v in LLAMA3.items()},
    }
    assert from_hf(new, "test") == from_hf(old, "test") == from_hf(older, "test")
    assert from_hf(new, "test").rope_theta == 500000.0


def test_original_context_outside_the_scaling_wins() -> None:
    config = {**SHAPE, "original_max_position_embeddings": 1024}
    config["rope_scaling"] = {"rope_type": "yarn", "factor": None}
    assert from_hf(config, "test").rope_scaling == RopeScaling("yarn", 4.0, 1024)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, r"'longrope' is not supported.*yarn, llama3"),
        ({"rope_type": "linear"}, "factor must be a positive number, not None"),
        ({"rope_type": "yarn", "factor": "4"}, "factor must be a positive number, not '4'"),
        ({"rope_type": "linear", "factor": -1.0}, "factor must be a positive number"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "differ between layers"),
    ],
)
def test_bad_scalings_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        config_with(rope)


def test_override() -> None:
    config = config_with()
    assert config.with_rope_scaling("yarn:4").rope_scaling == RopeScaling("yarn", 4.0, 4096)
    assert config.with_rope_scaling("linear:2").context_length == 8192
    assert config.with_rope_scaling("dynamic:2.5").context_length == 10240
    assert config.with_rope_scaling("yarn:4:1000").context_length == 4000
    yarn = config_with(
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    )
    assert yarn.with_rope_scaling("yarn:8").context_length == 4096


@pytest.mark.parametrize(
    "text",
    ["yarn", "yarn:", "yarn:x", "yarn:0.5", "yarn:nan", "llama3:8", "yarn:4:0", "4", "a:b:c:d"],
)
def test_bad_overrides_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rope-scaling"):
        config_with().with_rope_scaling(text)


def test_llama3_scaling_is_not_overridden() -> None:
    with pytest.raises(UsageError, match="trained with llama3 scaling"):
        config_with(LLAMA3).with_rope_scaling("yarn:4")
