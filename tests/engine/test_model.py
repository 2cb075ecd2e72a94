"""Our logits against transformers'."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.loader import load_model
from specbench.engine.model import Transformer
from specbench.engine.source import smollm2_file
from specbench.errors import UsageError
from tests.engine.dense_attention import logits
from tests.engine.gguf_models import gguf_reference
from tests.engine.hf_models import (
    hf_logits,
    in_double,
    relative_error,
    save,
    tiny_hf,
    tokens,
)
from tests.engine.tokenizer_file import write_tokenizer

FP32 = 1e-4

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-options": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.3,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama-multi-query": ("llama", {"num_key_value_heads": 1}),
    "llama-wide-heads": ("llama", {"head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}


def ours(
    folder: Path, max_len: int, dtype: torch.dtype = torch.float32, **options: Any
) -> Transformer:
    write_tokenizer(folder)
    return load_model(str(folder), device="cpu", dtype=dtype, max_len=max_len, **options).model


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_every_family(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    reference = tiny_hf(family, **changes)
    batch = tokens(3, 40)
    model = ours(save(reference, tmp_path), 40)
    assert relative_error(logits(model, batch, (17, 1, 6)), hf_logits(reference, batch)) < FP32


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_of_every_rope_scaling_beyond_the_original_context(
    family: str, scaling: str, tmp_path: Path
) -> None:
    parameters = {"rope_theta": 5000.0, **SCALINGS[scaling]}
    reference = tiny_hf(family, max_position_embeddings=32, rope_parameters=parameters)
    batch = tokens(2, 96)
    model = ours(save(reference, tmp_path), 96)
    assert relative_error(logits(model, batch, (50, 1)), hf_logits(reference, batch)) < FP32


@pytest.mark.parametrize("scaling", [name for name in SCALINGS if name != "default"])
def test_every_rope_scaling_changes_the_logits(scaling: str, tmp_path: Path) -> None:
    """Otherwise the comparison above would pass with the scaling ignored."""
    plain = tiny_hf("llama", max_position_embeddings=32)
    scaled = tiny_hf("llama", max_position_embeddings=32, rope_parameters=SCALINGS[scaling])
    batch = tokens(1, 96)
    assert relative_error(hf_logits(plain, batch), hf_logits(scaled, batch)) > 100 * FP32


def test_dynamic_scaling_is_fixed_at_the_reserved_length(tmp_path: Path) -> None:
    parameters = SCALINGS["dynamic"]
    reference = tiny_hf("llama", max_position_embeddings=32, rope_parameters=parameters)
    model = ours(save(reference, tmp_path), 96)
    batch = tokens(1, 96)
    whole = logits(model, batch)
    assert torch.equal(logits(model, batch[:, :20]), logits(model, batch, (20,))[:, :20])
    assert relative_error(whole, hf_logits(reference, batch)) < FP32


def test_rope_override_equals_the_same_configuration(tmp_path: Path) -> None:
    reference = tiny_hf("qwen3", max_position_embeddings=32)
    model = ours(save(reference, tmp_path), 96, rope_scaling="yarn:4")
    scaled = tiny_hf("qwen3", max_position_embeddings=32, rope_parameters=SCALINGS["yarn"])
    batch = tokens(1, 96)
    assert relative_error(logits(model, batch), hf_logits(scaled, batch)) < FP32


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_in_double(family: str, tmp_path: Path) -> None:
    reference = tiny_hf(family)
    model = ours(save(reference, tmp_path), 48, torch.float64)
    batch = tokens(2, 48)
    result = logits(model, batch, (30, 1))
    assert result.dtype == torch.float64
    assert relative_error(result, hf_logits(in_double(reference), batch)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_give_float32_logits_near_the_exact_ones(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = tiny_hf("qwen3")
    model = ours(save(reference, tmp_path), 32, dtype)
    batch = tokens(2, 32)
    result = logits(model, batch)
    assert result.dtype == torch.float32
    assert relative_error(result, hf_logits(reference, batch)) < 0.1


def test_no_parameter_asks_for_a_gradient(tmp_path: Path) -> None:
    model = ours(save(tiny_hf("llama"), tmp_path), 16)
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not logits(model, tokens(1, 8)).requires_grad


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return smollm2_file()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def real_text(data_folder: Path) -> str:
    with (data_folder / "govreport.jsonl").open(encoding="utf-8") as rows:
        return json.loads(next(rows))["report"]


def test_smollm2_on_real_tokens(smollm2: Path, real_text: str) -> None:
    loaded = load_model(str(smollm2), device="cpu", dtype=torch.float32, max_len=512)
    assert loaded.tokenizer is not None
    batch = torch.tensor([loaded.tokenizer(real_text[:20000])["input_ids"][:512]])
    assert batch.shape == (1, 512)
    reference = gguf_reference(smollm2)
    result, expected = logits(loaded.model, batch, (256,)), hf_logits(reference, batch)
    assert relative_error(result, expected) < FP32
    assert torch.equal(result.argmax(-1), expected.argmax(-1))
    part = batch[:, :96]
    exact = Transformer(loaded.config, 96, torch.float64, "cpu")
    exact.load_state_dict(loaded.model.state_dict())
    assert relative_error(logits(exact, part), hf_logits(in_double(reference), part)) < 1e-10
