"""What a training reads: text, its own tokens, curves and checkpoints, and drafts of others."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.source import Source
from specbench.errors import DataError
from specbench.methods.longspec import weights
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.config import DraftConfig
from specbench.train.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from specbench.train.corpus import PARTS, RECORD, read_corpus, sha256_of
from specbench.train.curves import LOSS, Curve, draw_curves, read_curve
from specbench.train.text import documents
from tests.support.hostile import bounded, damaged, examples, mutated, outcome, to_json
from tests.support.tiny import random_block, tiny_config

SHAPE = DraftConfig.of(tiny_config(hidden_size=8, intermediate_size=8, num_heads=2, head_dim=4))
STATE = {"step": 3, "tokens": 100, "seconds": 1.5}


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    weights.save(random_block(SHAPE, torch.float32), folder, torch.float32)
    return folder


def optimizer_of(block: DraftBlock) -> torch.optim.AdamW:
    for parameter in block.parameters():
        parameter.requires_grad_(True)
    return torch.optim.AdamW(block.parameters())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("checkpoint")
    block = random_block(SHAPE, torch.float32)
    save_checkpoint(folder, block, optimizer_of(block), STATE)
    return (folder / CHECKPOINT).read_bytes()


def load_draft(folder: Path) -> None:
    source = Source("safetensors", "draft", path=folder)
    weights.load(source, torch.float32, "cpu")
    weights.checksum(source)


@examples(30)
@given(data=st.data())
def test_a_changed_draft_configuration(data: st.DataObject, draft: Path, tmp_path: Path) -> None:
    valid = json.loads((draft / "config.json").read_text())
    (tmp_path / "config.json").write_text(to_json(data.draw(mutated(valid))))
    (tmp_path / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes())
    outcome(lambda: load_draft(tmp_path), "draft", "config.json")


@examples(40)
@given(data=st.data())
def test_damaged_draft_weights(data: st.DataObject, draft: Path, tmp_path: Path) -> None:
    whole = (draft / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((draft / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(data.draw(damaged(whole, within=1500)))
    outcome(lambda: load_draft(tmp_path), "draft")


def test_no_memory_is_taken_for_a_draft_that_no_file_holds(draft: Path, tmp_path: Path) -> None:
    config = json.loads((draft / "config.json").read_text()) | {"intermediate_size": 2**30}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes())
    with (
        bounded(),
        pytest.raises(DataError, match=r"its configuration asks for 25,769,80.* weights"),
    ):
        load_draft(tmp_path)


def resume(folder: Path) -> None:
    block = random_block(SHAPE, torch.float32)
    state = load_checkpoint(folder, block, optimizer_of(block))
    assert state["step"] >= 0


@st.composite
def checkpoints(draw: st.DrawFn, whole: bytes) -> bytes:
    """Another state, or tensors of other names, types and places."""
    size = struct.unpack("<Q", whole[:8])[0]
    header: dict[str, Any] = json.loads(whole[8 : 8 + size])
    if draw(st.booleans()):
        header["__metadata__"]["state"] = to_json(draw(mutated(STATE)))
    else:
        some = dict(list(header.items())[:6])
        changed = draw(mutated(some))
        header = header | changed if isinstance(changed, dict) else changed
    text = to_json(header).encode()
    return struct.pack("<Q", len(text)) + text + whole[8 + size :]


@examples(40)
@given(data=st.data())
def test_a_changed_checkpoint(data: st.DataObject, checkpoint: bytes, tmp_path: Path) -> None:
    content = data.draw(checkpoints(checkpoint) | damaged(checkpoint, within=4000))
    (tmp_path / CHECKPOINT).write_bytes(content)
    outcome(lambda: resume(tmp_path), CHECKPOINT)


@examples(30)
@given(data=st.data())
def test_a_damaged_curve(data: st.DataObject, tmp_path: Path) -> None:
    rows = "".join(f"{step},short,100,0.1,1,2.5,0.5,1.0,9.5\n" for step in range(4))
    file = tmp_path / "loss.csv"
    file.write_bytes(data.draw(damaged(f"{','.join(LOSS)}\n{rows}".encode())))
    outcome(lambda: Curve(file, LOSS, 3), "loss.csv")


def test_a_curve_of_something_else_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("step,loss\n1,2.5\n2,high\n")
    with pytest.raises(DataError, match=r"loss\.csv line 3 is no row of a training's curve"):
        draw_curves(tmp_path, "a title")
    (tmp_path / "loss.csv").write_text("step,loss\n1,nan\n")
    assert read_curve(tmp_path / "loss.csv") == [{"step": "1", "loss": "nan"}]


@examples(30)
@given(data=st.data())
def test_changed_tokens(data: st.DataObject, tmp_path: Path) -> None:
    for name in PARTS:
        (tmp_path / f"{name}.bin").write_bytes(np.arange(40, dtype=np.uint16).tobytes())
    sums = {name: sha256_of(tmp_path / f"{name}.bin") for name in PARTS}
    record = {"identity": {"a": 1}, "type": "uint16", "sha256": sums, "documents": {"train": 3}}
    changed = data.draw(
        mutated(record).map(to_json).map(str.encode) | damaged(to_json(record).encode())
    )
    (tmp_path / RECORD).write_bytes(changed)
    corpus = outcome(lambda: read_corpus(tmp_path, {"a": 1}, 0))
    if corpus is not None:
        assert (len(corpus.train), len(corpus.evaluation)) == (40, 40)


@pytest.mark.parametrize("kind", ["O", "V8", "float64", "uint64", 3])
def test_tokens_of_another_type_are_encoded_anew(kind: object, tmp_path: Path) -> None:
    for name in PARTS:
        (tmp_path / f"{name}.bin").write_bytes(bytes(64))
    sums = {name: sha256_of(tmp_path / f"{name}.bin") for name in PARTS}
    record = {"identity": {}, "type": kind, "sha256": sums}
    (tmp_path / RECORD).write_text(json.dumps(record))
    assert read_corpus(tmp_path, {}, 0) is None


@examples(30)
@given(data=st.data())
def test_damaged_rows_of_text(data: st.DataObject, tmp_path: Path) -> None:
    rows = [{"text": "once", "id": 1}, {"text": "upon a time", "meta": {"a": [1]}}]
    changed = st.tuples(*map(mutated, rows)).map(lambda found: "\n".join(map(to_json, found)))
    content = data.draw(changed.map(str.encode) | damaged("\n".join(map(to_json, rows)).encode()))
    (tmp_path / "rows.jsonl").write_bytes(content)

    def read() -> None:
        for text in documents(str(tmp_path), "text", []):
            text.encode()

    outcome(read, "rows.jsonl")
