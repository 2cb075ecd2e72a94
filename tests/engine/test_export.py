"""Models handed over as Hugging Face folders: equal weights, one folder, no half ones."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specbench.engine import export
from specbench.engine.dummy import SHAPES
from specbench.engine.export import cache_root, hf_folder
from specbench.engine.hf_config import from_hf, to_hf
from specbench.engine.loader import load_model, read_model_config
from specbench.engine.rope_scaling import RopeScaling
from specbench.errors import DataError
from tests.engine.dense_attention import logits
from tests.engine.gguf_models import write_gguf
from tests.engine.hf_models import hf_logits, relative_error, save, tiny_hf, tokens
from tests.support.folder import write_model


@pytest.mark.parametrize("name", SHAPES)
def test_a_configuration_survives_the_round_trip(name: str) -> None:
    config = from_hf(SHAPES[name], name)
    assert from_hf(to_hf(config, torch.bfloat16), name) == config


@pytest.mark.parametrize(
    "scaling",
    [
        RopeScaling("linear", 2.0, 40960),
        RopeScaling("dynamic", 4.0, 40960),
        RopeScaling("yarn", 4.0, 32768, beta_fast=16.0, attention_factor=1.5),
        RopeScaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
    ],
    ids=lambda scaling: scaling.type,
)
def test_so_does_its_rope_scaling(scaling: RopeScaling, tmp_path: Path) -> None:
    config = replace(from_hf(SHAPES["qwen3-8b"], "x"), rope_scaling=scaling)
    written = to_hf(config, torch.float32)
    assert from_hf(written, "x") == config
    (tmp_path / "config.json").write_text(json.dumps(written))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.rope_parameters["rope_type"] == scaling.type
    assert theirs.rope_parameters["factor"] == scaling.factor
    assert theirs.rope_parameters["rope_theta"] == config.rope_theta


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_becomes_a_folder_that_transformers_reads(family: str, tmp_path: Path) -> None:
    file = write_gguf(tiny_hf(family), tmp_path / "m.gguf", matrices=GGMLQuantizationType.Q8_0)
    folder = hf_folder(str(file), torch.float32, cache=tmp_path / "cache")
    ours = load_model(str(file), device="cpu", dtype=torch.float32, max_len=64)
    again = load_model(str(folder), device="cpu", dtype=torch.float32, max_len=64)
    for (name, a), (_, b) in zip(
        ours.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    assert again.config.eos_ids == ours.config.eos_ids
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = tokens(1, 12)
    assert relative_error(logits(ours.model, batch), hf_logits(theirs, batch)) < 1e-5
    text = "the report says"
    assert ours.tokenizer is not None
    assert AutoTokenizer.from_pretrained(folder)(text) == ours.tokenizer(text)


def test_it_is_made_once_and_for_each_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(write_gguf(tiny_hf("llama"), tmp_path / "m.gguf"))
    cache = tmp_path / "cache"
    first = hf_folder(file, torch.float32, cache=cache)
    half = hf_folder(file, torch.bfloat16, cache=cache)
    assert half != first
    config = json.loads((half / "config.json").read_text())
    assert config["dtype"] == "bfloat16"

    def never(*arguments: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(export, "_make", never)
    assert hf_folder(file, torch.float32, cache=cache) == first


def test_weights_are_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(write_gguf(tiny_hf("llama"), tmp_path / "m.gguf"))
    whole = hf_folder(file, torch.float32, cache=tmp_path / "whole")
    monkeypatch.setattr(export, "SHARD_BYTES", 5000)
    cut = hf_folder(file, torch.float32, cache=tmp_path / "cut")
    assert len(list(whole.glob("*.safetensors"))) == 1
    assert len(list(cut.glob("*.safetensors"))) > 3
    a, b = (load_model(str(f), device="cpu", dtype=torch.float32, max_len=8) for f in (whole, cut))
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(x, y)


def test_no_half_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(write_gguf(tiny_hf("llama"), tmp_path / "m.gguf"))

    def broken(*arguments: object) -> Iterator[tuple[str, Tensor]]:
        yield "model.norm.weight", torch.ones(4)
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "tensors_of", broken)
    with pytest.raises(KeyboardInterrupt):
        hf_folder(file, torch.float32, cache=tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    file = str(write_gguf(tiny_hf("llama"), tmp_path / "m.gguf"))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="SPECBENCH_CACHE names another place"):
        hf_folder(file, torch.float32, cache=tmp_path / "cache")


def test_a_safetensors_folder_is_its_own(tmp_path: Path) -> None:
    folder = save(tiny_hf("qwen3"), tmp_path / "model")
    assert hf_folder(str(folder), torch.float32, cache=tmp_path / "cache") == folder.resolve()
    assert not (tmp_path / "cache").exists()


def test_another_rope_scaling_makes_a_folder_of_links(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    made = hf_folder(str(folder), torch.float32, rope_scaling="yarn:4", cache=tmp_path / "cache")
    assert made != folder
    assert (made / "model.safetensors").is_symlink()
    assert read_model_config(str(made)).rope_scaling == RopeScaling(
        "yarn", 4.0, read_model_config(str(folder)).max_position_embeddings
    )
    assert AutoConfig.from_pretrained(made).rope_parameters["rope_type"] == "yarn"
    assert load_model(str(made), device="cpu", dtype=torch.float32, max_len=64).tokenizer


def test_random_weights_are_a_configuration_alone(tmp_path: Path) -> None:
    made = hf_folder("dummy:qwen3-8b", torch.bfloat16, cache=tmp_path)
    assert {file.name for file in made.iterdir()} == {"config.json", "generation_config.json"}
    assert from_hf(json.loads((made / "config.json").read_text()), "x").num_layers == 36


def test_frequencies_in_a_table_have_no_configuration() -> None:
    table = RopeScaling("llama3", 1.0, 8192, freq_factors=(1.0, 2.0))
    config = replace(from_hf(SHAPES["llama-3.1-8b"], "x"), rope_scaling=table)
    with pytest.raises(DataError, match="RoPE frequencies as a table"):
        to_hf(config, torch.float32)


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "a"))
    assert cache_root() == tmp_path / "a"
    monkeypatch.delenv("SPECBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "b" / "specbench"
