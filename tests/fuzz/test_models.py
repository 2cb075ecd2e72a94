"""Model folders: a model that computes, or one message; nothing is taken for a header's numbers."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.loader import LoadedModel, describe_model, load_model, read_model_config
from specbench.engine.rope_scaling import parse_override
from specbench.engine.safetensors_folder import safetensors_tensors
from specbench.engine.source import Source
from specbench.engine.tokenizer import load_tokenizer
from specbench.errors import DataError
from tests.support.folder import write_model
from tests.support.hostile import bounded, damaged, examples, mutated, odd_values, outcome, to_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("whole") / "model")


def with_file(model: Path, folder: Path, name: str, content: bytes) -> Path:
    """`folder` as a copy of `model` whose file `name` is `content`."""
    folder.mkdir(exist_ok=True)
    for file in (*model.iterdir(), folder / name):
        link = folder / file.name
        link.unlink(missing_ok=True)
        if file.name != name:
            link.symlink_to(file)
    (folder / name).write_bytes(content)
    return folder


def load(folder: Path) -> LoadedModel:
    read_model_config(str(folder))
    describe_model(str(folder))
    loaded = load_model(str(folder), device="cpu", dtype=torch.float32, max_len=32)
    json.dumps(loaded.provenance, allow_nan=False).encode()
    return loaded


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@examples(25)
@given(data=st.data())
def test_a_changed_configuration(
    name: str, data: st.DataObject, model: Path, tmp_path: Path
) -> None:
    valid: dict[str, Any] = json.loads((model / "config.json").read_text())
    valid |= {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32},
        "quantization_config": None,
        "layer_types": ["full_attention"],
    }
    if name != "config.json":
        valid = {"eos_token_id": [1, 2], "max_length": 5}
    content = to_json(data.draw(mutated(valid))).encode()
    folder = with_file(model, tmp_path / "model", name, content)
    outcome(lambda: load(folder), "model")


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3", "default"])
@examples(12)
@given(data=st.data())
def test_changed_rope_parameters(
    kind: str, data: st.DataObject, model: Path, tmp_path: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    keys = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    keys += ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "rope_theta")
    scaling = dict.fromkeys(keys, 2.0) | {"rope_type": kind, "truncate": True}
    config["rope_scaling"] = data.draw(mutated(scaling))
    folder = with_file(model, tmp_path / "model", "config.json", to_json(config).encode())
    outcome(lambda: load(folder), "model")


@examples(60)
@given(text=st.from_regex(r"(yarn|linear|dynamic|x)(:[-+0-9.eainf]{0,6}){0,3}") | st.text())
def test_rope_overrides(text: str) -> None:
    outcome(lambda: parse_override(text, 512, None, "m"), "--rope-scaling")


@examples(25)
@given(data=st.data())
def test_a_changed_index(data: st.DataObject, model: Path, tmp_path: Path) -> None:
    valid = {"metadata": {"total_size": 1}, "weight_map": {"a": WEIGHTS, "b": WEIGHTS}}
    content = to_json(data.draw(mutated(valid))).encode()
    folder = with_file(model, tmp_path / "model", INDEX, content)
    outcome(lambda: load(folder), "model")


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/passwd", "..", "a/b.safetensors", "*.safetensors", "weights.bin",
     "pytorch_model.pt", "", ".", "a\0.safetensors", "a\n.safetensors", 3, None, ["model"]],
)  # fmt: skip
def test_an_index_that_leaves_its_folder(name: object, model: Path, tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").write_bytes((model / WEIGHTS).read_bytes())
    content = json.dumps({"weight_map": {"a": name}}).encode()
    folder = with_file(model, tmp_path / "model", INDEX, content)
    source = Source("safetensors", "model", path=folder)
    with pytest.raises(DataError, match="outside the model's folder or no safetensors file"):
        list(safetensors_tensors(source))


@st.composite
def headers(draw: st.DrawFn, whole: bytes) -> bytes:
    """A safetensors file with another header, and perhaps another length of it."""
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    named = dict(list(header.items())[:4])
    changed = draw(mutated(named))
    text = to_json(header | changed if isinstance(changed, dict) else changed).encode()
    length = draw(st.sampled_from((None, None, None, 0, 2**27, 2**40, 2**63, 2**64 - 1)))
    stated = len(text) if length is None else length
    return struct.pack("<Q", stated) + text + whole[8 + size :]


@examples(60)
@given(data=st.data())
def test_damaged_weights(data: st.DataObject, model: Path, tmp_path: Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    content = data.draw(headers(whole) | damaged(whole, within=3000))
    folder = with_file(model, tmp_path / "model", WEIGHTS, content)
    outcome(lambda: load(folder), "model")


def test_a_header_length_is_not_taken_for_an_allocation(model: Path, tmp_path: Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    content = struct.pack("<Q", 2**40) + whole[8:]
    folder = with_file(model, tmp_path / "model", WEIGHTS, content)
    with bounded(), pytest.raises(DataError, match="header would have 1,099,511,627,784 bytes"):
        describe_model(str(folder))


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 4000},
        {"vocab_size": 2**31 - 1},
        {"hidden_size": 2**30, "head_dim": 8},
        {"intermediate_size": 2**31 - 1, "num_hidden_layers": 4000},
    ],
)
def test_no_memory_is_taken_for_weights_that_no_file_holds(
    sizes: dict[str, int], model: Path, tmp_path: Path
) -> None:
    config = json.loads((model / "config.json").read_text()) | sizes
    folder = with_file(model, tmp_path / "model", "config.json", json.dumps(config).encode())
    with bounded(), pytest.raises(DataError, match=r"its configuration asks for .* weights"):
        load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@examples(25)
@given(data=st.data())
def test_changed_tokenizer_files(
    name: str, data: st.DataObject, model: Path, tmp_path: Path
) -> None:
    valid = (model / name).read_bytes()
    changed = mutated(json.loads(valid)).map(lambda value: to_json(value).encode())
    content = data.draw(changed | damaged(valid))
    folder = with_file(model, tmp_path / "model", name, content)
    outcome(lambda: load_tokenizer(str(folder)), "model")


@examples(30)
@given(value=odd_values())
def test_a_configuration_that_is_something_else(value: Any, model: Path, tmp_path: Path) -> None:
    folder = with_file(model, tmp_path / "model", "config.json", to_json(value).encode())
    outcome(lambda: read_model_config(str(folder)), "model")
