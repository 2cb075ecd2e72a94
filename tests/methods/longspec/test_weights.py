"""Drafts on disk: ours, the authors', and damaged ones."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.engine.source import Source
from specbench.errors import DataError, SpecbenchError, UsageError
from specbench.methods.longspec import drafts
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.drafts import locate_draft
from specbench.methods.longspec.weights import load, save, slots
from tests.support.tiny import random_block, tiny_config

CONFIG = DraftConfig.of(tiny_config(), window=20, depth=3)


def source(folder: Path) -> Source:
    return locate_draft(str(folder), "tiny")


def stored(folder: Path) -> DraftBlock:
    return load(source(folder), torch.float32, "cpu")


@pytest.mark.parametrize("mlp_bias", [False, True])
def test_what_is_saved_is_loaded(tmp_path: Path, mlp_bias: bool) -> None:
    block = random_block(DraftConfig.of(tiny_config(mlp_bias=mlp_bias), 20, 3), torch.float32)
    save(block, tmp_path / "draft", torch.float32, {"steps": 7})
    again = stored(tmp_path / "draft")
    assert again.config == block.config
    for (name, one), two in zip(block.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert json.loads((tmp_path / "draft" / "training.json").read_text()) == {"steps": 7}


def test_every_weight_is_stored_once() -> None:
    block = random_block(CONFIG)
    assert sum(part.numel() for part in slots(block).values()) == CONFIG.parameter_count()
    assert sum(weight.numel() for weight in block.parameters()) == CONFIG.parameter_count()


def published(folder: Path, prefix: str = "", **changes: Any) -> dict[str, Tensor]:
    """A checkpoint as LongSpec's authors publish them, with random values."""
    q, kv, hidden, inner = 32, 16, 32, 48
    shapes: dict[str, tuple[int, ...]] = {}
    for attention in ("self_attn", "cross_attn"):
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{attention}.{part}_proj.weight"] = (rows, hidden)
            shapes[f"{attention}.{part}_proj.bias"] = (rows,)
        shapes[f"{attention}.o_proj.weight"] = (hidden, q)
    shapes |= {f"mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
    shapes["mlp.down_proj.weight"] = (hidden, inner)
    for norm in ("input", "post_self_attention", "post_cross_attention"):
        shapes[f"{norm}_layernorm.weight"] = (hidden,)
    generator = torch.Generator().manual_seed(0)
    tensors = {prefix + k: torch.randn(v, generator=generator) for k, v in shapes.items()}
    config = {
        "architectures": ["Qwen2GlideDecoderLayer"],
        "model_type": "qwen2",
        "vocab_size": 32,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
    }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | changes))
    return tensors


@pytest.mark.parametrize("prefix", ["", "draft_model.", "glide."])
@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_published_checkpoint_loads(tmp_path: Path, prefix: str, kind: str) -> None:
    tensors = published(tmp_path, prefix, model_type=kind)
    block = stored(tmp_path)
    block.config.check_target(tiny_config(), "x")
    # 512 to the left of the query
    assert block.config.window == 513
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    q, k, v = (found[f"self_attn.{part}_proj.weight"] for part in "qkv")
    assert torch.equal(block.qkv, torch.cat([q, k, v]))
    q, k, v = (found[f"self_attn.{part}_proj.bias"] for part in "qkv")
    assert torch.equal(block.qkv_bias, torch.cat([q, k, v]))
    assert torch.equal(block.o, found["self_attn.o_proj.weight"])
    assert torch.equal(block.cross_q, found["cross_attn.q_proj.weight"])
    assert torch.equal(block.cross_q_bias, found["cross_attn.q_proj.bias"])
    assert torch.equal(block.cross_o, found["cross_attn.o_proj.weight"])
    gate, up = found["mlp.gate_proj.weight"], found["mlp.up_proj.weight"]
    assert torch.equal(block.gate_up, torch.cat([gate, up]))
    assert torch.equal(block.down, found["mlp.down_proj.weight"])
    assert torch.equal(block.self_norm, found["input_layernorm.weight"])
    assert torch.equal(block.cross_norm, found["post_self_attention_layernorm.weight"])
    assert torch.equal(block.mlp_norm, found["post_cross_attention_layernorm.weight"])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mlp.up_proj.weight", None, "1 tensors missing: mlp.up_proj.weight"),
        ("mlp.up_proj.weight", torch.zeros(3, 4), r"shape \[3, 4\], .* asks for \[48, 32\]"),
        ("input_layernorm.weight", torch.full((32,), torch.nan), "NaN or infinite"),
        ("lm_head.weight", torch.zeros(3), "1 tensors unexpected: lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, name: str, change: Tensor | None, message: str
) -> None:
    save(random_block(CONFIG), tmp_path, torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=message):
        stored(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "has the format 'other'"),
        ({"depth": None}, "depth in config.json cannot be None"),
        ({"window": True}, "window in config.json cannot be True"),
        ({"colour": 1}, "missing or unknown keys: colour"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_explained(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    save(random_block(CONFIG), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_json() | change))
    with pytest.raises(DataError, match=message):
        stored(tmp_path)


def test_damaged_and_missing_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no config\.json"):
        stored(tmp_path)
    save(random_block(CONFIG), tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match="not a readable safetensors file"):
        stored(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"has no model\.safetensors"):
        stored(tmp_path)


def test_another_models_draft_is_refused_with_the_sizes() -> None:
    with pytest.raises(UsageError, match=r"hidden_size 32 \(not 64\).*specbench train longspec"):
        CONFIG.check_target(tiny_config(name="other", hidden_size=64), "mine")


@pytest.mark.parametrize("spec", ["./none", "/none/at/all", "none"])
def test_a_folder_that_is_not_there(spec: str) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        locate_draft(spec, "tiny")


def test_what_ships_is_found_by_the_targets_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "_SHIPPED", tmp_path)
    (tmp_path / "smollm2-135m-instruct").mkdir()
    for name in (
        "smollm2-135m-instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct-Q8_0.gguf",
    ):
        assert locate_draft(None, name).label == "smollm2-135m-instruct"
    with pytest.raises(UsageError, match="longspec needs draft weights for SmolLM2-135M"):
        locate_draft(None, "SmolLM2-135M")


def test_a_full_disk_leaves_the_draft_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = random_block(CONFIG, torch.float32)
    save(block, tmp_path, torch.float32)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    other = random_block(CONFIG, torch.float32)
    other.o.zero_()
    with pytest.raises(SpecbenchError, match=r"No space left on device; the one before is intact"):
        save(other, tmp_path, torch.float32)
    assert torch.equal(stored(tmp_path).o, block.o)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
