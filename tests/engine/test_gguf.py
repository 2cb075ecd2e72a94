"""GGUF files: weights, order of query and key rows, RoPE, tied matrices, end tokens, bad files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from specbench.engine.gguf_config import gguf_config
from specbench.engine.loader import LoadedModel, load_model
from specbench.engine.tokenizer import load_tokenizer
from specbench.errors import DataError
from tests.engine.dense_attention import logits
from tests.engine.gguf_models import default_vocabulary, gguf_reference, write_gguf
from tests.engine.hf_models import hf_logits, relative_error, tiny_hf, tokens

FP32 = 1e-4

VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    # transformers takes 128 for Qwen3 whatever the file says
    "qwen3": ("qwen3", {"head_dim": 128}),
}


def load(path: Path, max_len: int = 64) -> LoadedModel:
    return load_model(str(path), device="cpu", dtype=torch.float32, max_len=max_len)


@pytest.mark.parametrize("matrices", [Quant.F32, Quant.F16, Quant.Q8_0, Quant.Q4_1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_reading_of_the_same_file(
    variant: str, matrices: Quant, tmp_path: Path
) -> None:
    family, changes = VARIANTS[variant]
    source = tiny_hf(family, **changes)
    path = write_gguf(source, tmp_path / "tiny.gguf", matrices=matrices)
    loaded = load(path)
    batch = tokens(2, 40)
    result = logits(loaded.model, batch)
    assert relative_error(result, hf_logits(gguf_reference(path), batch)) < FP32
    if matrices is Quant.F32:
        assert relative_error(result, hf_logits(source, batch)) < FP32
    assert loaded.config.tie_word_embeddings == source.config.tie_word_embeddings
    assert loaded.provenance["format"] == "gguf"


def test_qwen3_takes_its_head_dimension_from_the_file(tmp_path: Path) -> None:
    source = tiny_hf("qwen3", head_dim=16)
    loaded = load(write_gguf(source, tmp_path / "tiny.gguf"))
    batch = tokens(1, 30)
    assert relative_error(logits(loaded.model, batch), hf_logits(source, batch)) < FP32


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_of_the_metadata(kind: str, tmp_path: Path) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5000.0, "factor": 4.0}
    metadata = {"{family}.rope.scaling.type": kind, "{family}.rope.scaling.factor": 4.0}
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = 32
        metadata["{family}.rope.scaling.original_context_length"] = 32
    source = tiny_hf("qwen2", max_position_embeddings=32, rope_parameters=parameters)
    loaded = load(write_gguf(source, tmp_path / "tiny.gguf", metadata=metadata), 96)
    batch = tokens(1, 96)
    assert relative_error(logits(loaded.model, batch), hf_logits(source, batch)) < FP32
    assert loaded.config.context_length == 128
    assert loaded.provenance["rope_scaling"] == f"{kind}:4"


def test_llama3_scaling_stored_as_factors(tmp_path: Path) -> None:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    source = tiny_hf("llama", max_position_embeddings=256, rope_parameters=parameters)
    plain = 5000.0 ** -(np.arange(0, 8, 2) / 8)
    scaled = source.model.rotary_emb.inv_freq.numpy()
    factors = (plain / scaled).astype(np.float32)
    assert factors.max() == pytest.approx(8)
    path = write_gguf(source, tmp_path / "tiny.gguf", extra={"rope_freqs.weight": factors})
    batch = tokens(1, 96)
    loaded = load(path, 96)
    assert relative_error(logits(loaded.model, batch), hf_logits(source, batch)) < FP32
    assert loaded.config.context_length == 256


def test_tied_matrix_stored_twice_is_taken_from_the_output(tmp_path: Path) -> None:
    source = tiny_hf("llama", tie_word_embeddings=True)
    path = write_gguf(source, tmp_path / "a.gguf", matrices=Quant.Q8_0, output=Quant.F32)
    loaded = load(path)
    assert loaded.config.tie_word_embeddings
    assert loaded.model.head is loaded.model.embed
    assert torch.equal(loaded.model.embed, source.lm_head.weight)


def test_different_matrices_stay_untied(tmp_path: Path) -> None:
    source = tiny_hf("llama")
    loaded = load(write_gguf(source, tmp_path / "a.gguf"))
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.model.embed, source.model.embed_tokens.weight)
    assert torch.equal(loaded.model.head, source.lm_head.weight)


def test_end_tokens_are_the_metadatas_and_the_vocabularys(tmp_path: Path) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf")
    assert gguf_config(path, "a").eos_ids == (1, 2, 0)
    plain = [f"v{index}" for index in range(96)]
    path = write_gguf(tiny_hf("llama"), tmp_path / "b.gguf", vocabulary=plain)
    assert gguf_config(path, "b").eos_ids == (1,)


def test_tokenizer_comes_from_the_file(tmp_path: Path) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf")
    tokenizer = load_tokenizer(str(path))
    assert tokenizer is not None
    vocabulary = default_vocabulary(96)
    expected = [vocabulary.index(token) for token in ("a", "c", "<|im_end|>")]
    assert tokenizer("ac<|im_end|>")["input_ids"] == expected
    assert tokenizer.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"{family}.expert_count": 8}, "mixture-of-experts"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"{family}.attention.sliding_window": 512}, "sliding-window"),
        (
            {"{family}.rope.scaling.type": "longrope", "{family}.rope.scaling.factor": 2.0},
            "'longrope'",
        ),
        ({"{family}.rope.scaling.attn_factor": 0.5}, "attention factor"),
    ],
)
def test_what_the_engine_lacks_is_refused(
    metadata: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf", metadata=metadata)
    with pytest.raises(DataError, match=message):
        gguf_config(path, "a.gguf")


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"llama", b"gemma"))
    with pytest.raises(DataError, match=r"'gemma' is not supported.*LlamaForCausalLM.*Qwen3"):
        load(path)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf", leave_out="blk.1.ffn_up.weight")
    with pytest.raises(DataError, match=r"missing \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load(path)


def test_unknown_tensor_is_named(tmp_path: Path) -> None:
    extra = {"blk.0.something.weight": np.ones(4, np.float32)}
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf", extra=extra)
    with pytest.raises(DataError, match=r"unexpected \(blk\.0\.something\.weight\)"):
        load(path)


@pytest.mark.parametrize("kept", [0, 3, 10, 500, 0.5])
def test_damaged_file(kept: float, tmp_path: Path) -> None:
    path = write_gguf(tiny_hf("llama"), tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept) if kept < 1 else int(kept)])
    with pytest.raises(DataError, match=r"a\.gguf"):
        load(path)


def test_no_gguf_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_text("not a model " * 100)
    with pytest.raises(DataError, match="not a readable GGUF file"):
        load(path)
