"""vLLM's weights under the engine's forward: one rank, and two whose parts are joined."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.forward import FullAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Transformer
from specbench.engine.phases import Phases
from specbench.errors import UsageError
from specbench.integrations.vllm.target import local_shape, model_shape, shard_of, view
from tests.support.tiny import tiny_model
from tests.support.vllm_batch import Watching
from tests.support.vllm_model import vllm_model

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"architecture": "qwen2", "qkv_bias": True, "tie_word_embeddings": True},
    "qwen3": {"architecture": "qwen3", "qk_norm": True},
}
TOKENS = torch.tensor([[3, 60, 7, 99, 12]])


def make(name: str) -> Transformer:
    return tiny_model(2, torch.float32, 32, vocab_size=100, **SHAPES[name])


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_view_computes_what_the_model_does_on_the_same_memory(name: str) -> None:
    model = make(name)
    theirs = vllm_model(model)
    ours = view(theirs, model.config, 32, torch.float32)
    positions = torch.arange(5)[None]
    hidden = model(TOKENS, positions, Watching())
    assert torch.equal(ours(TOKENS, positions, Watching()), hidden)
    assert torch.equal(ours.logits(hidden), model.logits(hidden))
    assert ours.embed.data_ptr() == theirs.model.embed_tokens.weight.data_ptr()
    down = theirs.model.layers[1].mlp.down_proj.weight
    assert ours.layers[1].down.data_ptr() == down.data_ptr()


def repacked(theirs: Any) -> None:
    theirs.model.layers[1].self_attn.qkv_proj.weight = torch.empty(0)


def of_another_type(theirs: Any) -> None:
    mlp = theirs.model.layers[0].mlp
    mlp.down_proj.weight = mlp.down_proj.weight.half()


def partly_rotated(theirs: Any) -> None:
    rotary = theirs.model.layers[0].self_attn.rotary_emb
    rotary.cos_sin_cache = rotary.cos_sin_cache[:, :4]


def short(theirs: Any) -> None:
    rotary = theirs.model.layers[0].self_attn.rotary_emb
    rotary.cos_sin_cache = rotary.cos_sin_cache[:16]


def otherwise_built(theirs: Any) -> None:
    theirs.model = SimpleNamespace(blocks=[])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (repacked, "vLLM holds qkv as \\(0,\\)"),
        (of_another_type, "holds down in torch.float16"),
        (partly_rotated, "of 4 of 8 dimensions"),
        (short, "tables of 16 positions, of 32"),
        (otherwise_built, "not built like Llama"),
    ],
)
def test_what_cannot_be_read_is_refused(change: Callable[[Any], None], message: str) -> None:
    model = make("llama")
    theirs = vllm_model(model)
    change(theirs)
    with pytest.raises(UsageError, match=message):
        view(theirs, model.config, 32, torch.float32)


def test_a_shape_is_read_from_vllms_configuration_and_split_evenly() -> None:
    from specbench.engine.hf_config import to_hf

    shape = make("qwen3").config
    hf = SimpleNamespace(to_dict=lambda: to_hf(shape, torch.float32))
    read = model_shape(SimpleNamespace(model_config=SimpleNamespace(hf_config=hf, model="tiny")))
    assert read == shape
    local = local_shape(shape, 2)
    assert (local.num_heads, local.num_kv_heads, local.intermediate_size) == (2, 1, 24)
    with pytest.raises(UsageError, match="2 KV heads do not divide into 3 ranks"):
        local_shape(shape, 3)


class Group:
    """Two ranks in two threads of which one computes at a time, since the interpreter is one."""

    def __init__(self, size: int) -> None:
        self.turn, self.barrier = threading.Lock(), threading.Barrier(size)
        self.parts: list[Tensor | None] = [None] * size

    def exchange(self, rank: int, x: Tensor) -> Tensor:
        """All ranks' parts `[ranks, ...]`."""
        self.parts[rank] = x.clone()
        self.turn.release()
        self.barrier.wait()
        self.turn.acquire()
        every = torch.stack([part for part in self.parts if part is not None])
        self.turn.release()
        self.barrier.wait()
        self.turn.acquire()
        return every


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_two_ranks_choose_the_tokens_of_one(name: str) -> None:
    pytest.importorskip("triton")
    from specbench.integrations.vllm.parallel import ParallelCompute, Ranks

    model, size = make(name), 2
    positions = torch.arange(5)[None]
    expected = model.logits(model(TOKENS, positions, Watching())).argmax(-1)
    group = Group(size)
    found: dict[int, Tensor] = {}

    class Threads(Ranks):
        def sum(self, x: Tensor) -> Tensor:
            return group.exchange(self.shard.rank, x).sum(0)

        def gather(self, x: Tensor) -> Tensor:
            return group.exchange(self.shard.rank, x)

    def run(rank: int) -> None:
        with group.turn:
            local = local_shape(model.config, size)
            theirs = vllm_model(model, rank, size)
            ours = view(theirs, local, 32, torch.float32)
            cache = KVCache(local, 2, torch.float32, "cpu")
            ranks = Threads(shard_of(theirs, model.config, rank, size))
            compute = ParallelCompute(ours, cache, ranks)
            table, one = torch.tensor([[1]]), torch.tensor([5])
            slots = 16 + positions
            attention = FullAttention(
                cache, table, slots, one, one, 8**-0.5, None, Phases(enabled=False)
            )
            found[rank], bad = compute.best(TOKENS, positions, attention)
            assert not bad.any()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], expected)
