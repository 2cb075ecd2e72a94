"""The shape of a model from its configuration."""

from typing import Any

import pytest
import torch

from specbench.engine.dummy import SHAPES
from specbench.engine.hf_config import from_hf
from specbench.errors import ContextTooLongError, DataError
from tests.engine.hf_models import TINY, tiny_hf

LLAMA: dict[str, Any] = {**TINY, "architectures": ["LlamaForCausalLM"]}
QWEN3: dict[str, Any] = {**TINY, "architectures": ["Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_weight_bytes_are_exact(family: str, changes: dict[str, Any]) -> None:
    model = tiny_hf(family, **changes)
    config = from_hf(model.config.to_dict() | {"model_type": family}, "test")
    expected = sum(weight.numel() for weight in model.parameters())
    assert config.parameter_count() == expected
    assert config.weight_bytes(torch.bfloat16) == 2 * expected


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-4b", 4_022_468_096),
        ("qwen2.5-coder-0.5b", 494_032_768),
        ("smollm2-135m", 134_515_008),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_published_sizes_of_the_built_in_shapes(shape: str, parameters: int) -> None:
    assert from_hf(SHAPES[shape], shape).parameter_count() == parameters


def test_kv_bytes_per_token() -> None:
    config = from_hf(SHAPES["qwen3-8b"], "qwen3-8b")
    assert config.kv_bytes_per_token(torch.bfloat16) == 147_456


def test_model_type_serves_where_no_architecture_is_declared() -> None:
    assert from_hf({**TINY, "model_type": "qwen2"}, "test").qkv_bias
    assert from_hf({**QWEN3}, "test").qk_norm
    assert from_hf({**QWEN3}, "test").head_dim == 128


def test_end_tokens_of_both_configurations() -> None:
    config = from_hf({**LLAMA, "eos_token_id": 5}, "test", {"eos_token_id": [7, 5]})
    assert config.eos_ids == (5, 7)
    assert from_hf({**LLAMA, "eos_token_id": None}, "test").eos_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            r"'MistralForCausalLM' is not supported\. Supported: LlamaForCausalLM, Qwen2.*, Qwen3",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": None, "model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"architectures": None}, "None is not supported"),
        ({"use_sliding_window": True, "sliding_window": 32}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"num_experts": 8}, r"mixture-of-experts.*8 experts"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised with 'awq'"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a positive number below 1, not None"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"num_attention_heads": [4, 4]}, "num_attention_heads must be a positive integer"),
        ({"num_key_value_heads": [2, 2]}, "num_kv_heads must be a positive integer"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 7}, "even head dimension, not 7"),
    ],
)
def test_what_the_engine_lacks_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_hf({**LLAMA, **changes}, "test")


def test_unused_sliding_window_is_no_obstacle() -> None:
    config = {**QWEN3, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 2}
    assert from_hf(config, "test").num_layers == 2


def test_context_length_with_scaling() -> None:
    def context(rope: dict[str, Any] | None) -> int:
        return from_hf({**LLAMA, "rope_scaling": rope}, "test").context_length

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}
    assert context(None) == 64
    assert context({"rope_type": "linear", "factor": 2.0}) == 128
    assert context({"rope_type": "dynamic", "factor": 3.0}) == 192
    assert context(yarn) == 128
    assert context({**llama3, "original_max_position_embeddings": 16}) == 64


def test_qwen3_is_stretched_from_its_trained_context() -> None:
    config = from_hf(SHAPES["qwen3-8b"], "qwen3-8b")
    assert config.context_length == 40960
    assert config.with_rope_scaling("yarn:4").context_length == 131072


def test_context_check_says_how_to_go_on() -> None:
    config = from_hf(SHAPES["qwen3-8b"], "qwen3-8b")
    config.check_context(40960)
    with pytest.raises(ContextTooLongError, match=r"holds 40,960.*100,512.*--rope-scaling yarn:4"):
        config.check_context(100_512)
    llama = from_hf(SHAPES["llama-3.1-8b"], "llama")
    with pytest.raises(ContextTooLongError, match=r"131,072 tokens, but 131,073(?!.*yarn)"):
        llama.check_context(131_073)
