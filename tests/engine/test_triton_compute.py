"""The engine on the Triton kernels gives what it gives in plain torch."""

import pytest
import torch

pytest.importorskip("triton")

from specbench.config import AttentionBackend, Queries
from specbench.engine.compute import make_compute
from specbench.engine.engine import Engine
from specbench.engine.forward import FullAttention
from specbench.engine.reference_compute import ReferenceCompute
from specbench.engine.sampling import Sampling
from specbench.engine.triton_attention import TritonAttention
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.errors import UsageError
from specbench.kernels.paged_attention.reference import Collect
from specbench.methods.base import Draft, EngineMethod
from tests.methods.longspec.informed import informed
from tests.support.buffers import DEVICE
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec,
    longspec_tree,
    magicdec,
    prompts,
    self_tree,
    specextend,
    tiny_model,
    vegas,
)

SHAPES = {
    "llama": {},
    "qwen2": {"qkv_bias": True, "tie_word_embeddings": True, "num_heads": 6, "num_kv_heads": 2},
    "qwen3": {"qk_norm": True, "head_dim": 16},
}
# the interpreter takes half a minute for each of them: it runs one of a kind
SLOW = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
INTERPRETED = ("vegas, one set a layer", "specextend, in trees")
METHODS = {
    "autoregressive": autoregressive(),
    "vegas, one set a layer": vegas(share="layer", score="logit"),
    "vegas, divided by the sum before": vegas(normaliser="previous"),
    "vegas, divided by its drafts' sums": vegas(normaliser="draft"),
    "vegas, by all rows": vegas(normaliser="draft", queries="all", gamma=4),
    "stream": magicdec("stream"),
    "snapkv": magicdec("snapkv"),
    "quest": magicdec("quest"),
    "longspec": longspec_tree(),
    "longspec, in chains": longspec(),
    "specextend": specextend(),
    "specextend, in trees": self_tree(nodes=4, depth=3),
}


def tokens(
    backend: AttentionBackend,
    method: EngineMethod,
    sampling: Sampling,
    fusion: Fusion | None = None,
    **shape: object,
) -> list[list[int]]:
    """Outputs of three prompts, of which two decode together."""
    model = tiny_model(3, torch.float32, 64, **shape).to(DEVICE)
    spare = method.nodes
    engine = Engine(model, rows=2, max_len=64, backend=backend, prefill_chunk=16, spare=spare)
    if fusion is not None:
        engine.compute = TritonCompute(model, engine.cache, fusion)
    outputs = decode(engine, method, prompts(3, [21, 5, 33]), 4, sampling)
    engine.cache.check_integrity()
    return [outputs[i].output_ids for i in range(3)]


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, id=n, marks=[] if n == "qwen2" else SLOW) for n, s in SHAPES.items()],
)
def test_vegas_of_every_architecture(shape: dict[str, object]) -> None:
    expected = tokens("sdpa", autoregressive(), Sampling(), **shape)
    method = vegas(normaliser="previous", gamma=2)
    assert tokens("triton", method, Sampling(), **shape) == expected


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, id=n, marks=[] if n in INTERPRETED else SLOW) for n, m in METHODS.items()],
)
def test_every_method(method: EngineMethod) -> None:
    expected = tokens("sdpa", autoregressive(), Sampling())
    assert tokens("triton", method, Sampling()) == expected


@pytest.mark.parametrize("queries", ["first+last", "all"])
def test_more_rows_than_a_tile_holds_vote_in_one_pass(queries: Queries) -> None:
    model = tiny_model(3, torch.float32, 64, num_heads=6, num_kv_heads=2).to(DEVICE)
    cache = Engine(model, rows=1, max_len=64).cache
    attention = TritonAttention(model, cache, None, False)
    for rows in (10, 17):
        paged = attention.workspace(1, rows, Collect(queries=queries), one_pass=True)
        assert paged.collecting.normed
        assert paged.collecting.weights is None


def test_one_iteration_of_trees() -> None:
    model = tiny_model(3, torch.float32, 64).to(DEVICE)
    token_ids = dict(enumerate(prompts(3, [21, 5])))
    method, _ = informed(model, (3, 4, 4), token_ids, 12, window=12, max_len=64)
    found = []
    for backend in ("sdpa", "triton"):
        spare = method.nodes
        engine = Engine(model, rows=2, max_len=64, backend=backend, prefill_chunk=32, spare=spare)
        engine.use(method, Sampling())
        for row, ids in token_ids.items():
            engine.admit(row, row, ids, 12)
        with torch.inference_mode():
            method.catch_up(engine.batch)
            tree = method.grow(engine.batch)
        step = engine.step()
        kv = [
            part[:, engine.batch.block_table].flatten(2, 3)
            for part in (engine.cache.keys, engine.cache.values)
        ]
        kept = [x[:, row, : int(engine.batch.lengths[row])] for x in kv for row in range(2)]
        found.append((tree, step, kept))
    (expected, base, true), (ours, got, held) = found
    assert torch.equal(ours.tokens, expected.tokens)
    assert torch.equal(ours.parents, expected.parents)
    torch.testing.assert_close(ours.scores, expected.scores, rtol=1e-4, atol=1e-4)
    assert got == base
    assert sum(got.accepted) > 2
    for one, other in zip(held, true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@SLOW
def test_products_by_the_library_instead() -> None:
    expected = tokens("sdpa", autoregressive(), Sampling())
    assert tokens("triton", vegas(), Sampling(), Fusion(0, 0, 0, 0, 0)) == expected


@pytest.mark.parametrize("only", ["qkv", "o", "gate_up", "down", "head"])
def test_one_fused_product_among_others(only: str) -> None:
    fusion = Fusion(**(dict.fromkeys(Fusion.__dataclass_fields__, 0) | {only: 64}))
    model = tiny_model(4, torch.float32, 32, qkv_bias=True).to(DEVICE)
    engine = Engine(model, rows=2, max_len=32, backend="triton")
    batch = engine.batch
    ids = torch.tensor([[3], [5]], device=DEVICE)
    expected = None
    for compute in (
        ReferenceCompute(model, engine.cache),
        TritonCompute(model, engine.cache, fusion),
    ):
        engine.compute = compute
        engine.use(autoregressive(), Sampling())
        for row in range(2):
            engine.admit(row, row, prompts(5, [9])[0], 4)
        position = batch.lengths[:, None].clone()
        one = torch.ones_like(batch.lengths)
        attention = FullAttention(
            engine.cache,
            batch.block_table,
            batch.slots(position, batch.active[:, None]),
            batch.lengths + 1,
            one,
            engine.scale,
            None,
            engine.phases,
        )
        found = compute.hidden(ids, position, attention)
        engine.release_all()
        if expected is None:
            expected = found
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@SLOW
@pytest.mark.parametrize("name", ["vegas", "longspec", "specextend, in trees"])
def test_sampled_outputs(name: str) -> None:
    sampling = Sampling(0.8, 0.95, 20, seed=7)
    method = METHODS.get(name) or vegas()
    expected = tokens("sdpa", method, sampling)
    assert tokens("triton", method, sampling) == expected


@pytest.mark.parametrize("drafted", ["at random", "for sure", "not at all"])
def test_sampled_chains_are_committed_as_by_the_engine(drafted: str) -> None:
    model = tiny_model(4, torch.float32, 64).to(DEVICE)
    engine = Engine(model, rows=3, max_len=64, backend="triton")
    generator = torch.Generator().manual_seed(8)
    gamma, vocab = 4, model.config.vocab_size
    logits = 2 * torch.randn(3, gamma + 1, vocab, generator=generator)
    probs = (logits[:, :gamma] + 0.2 * torch.randn(3, gamma, vocab, generator=generator)).softmax(
        -1
    )
    tokens = probs.flatten(0, 1).multinomial(1, generator=generator).view(3, gamma)
    draft = Draft(tokens.to(DEVICE), probs.to(DEVICE) if drafted == "at random" else None)
    if drafted == "not at all":
        draft, logits = None, logits[:, :1]
    found = []
    for compute in (ReferenceCompute(model, engine.cache), TritonCompute(model, engine.cache)):
        engine.use(vegas(gamma=gamma), Sampling(0.9, 0.9, 30, seed=2))
        for row, left in enumerate([20, 3]):
            engine.admit(row, row, prompts(5, [9])[0], left)
        batch = engine.batch
        chunk = compute.make_chunk(batch, draft, gamma, 64)
        result = compute.finish_sampled(batch, chunk, draft, logits.to(DEVICE), engine.sampling)
        state = batch.tokens, batch.lengths, batch.remaining, batch.active, batch.deepest
        found.append([x.clone() for x in (result[:2], *(x[:2] for x in state))])
        engine.release_all()
    for ours, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, expected)
    if drafted == "at random":
        assert found[0][0][0, 0] > 1  # more than one token was committed


def test_what_cannot_be_had_is_said() -> None:
    model = tiny_model(0, torch.float64, 32)
    with pytest.raises(UsageError, match="float32 at most"):
        Engine(model, rows=1, max_len=32, backend="triton")
    engine = Engine(model, rows=1, max_len=32)
    assert engine.compute.name == "reference"
    assert make_compute("sdpa", model, engine.cache).name == "reference"


def test_the_host_may_be_an_iteration_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(6, torch.float64)

    def outputs() -> list[tuple[list[int], list[int], list[int]]]:
        engine = Engine(model, rows=2, max_len=256)
        done = decode(engine, vegas(), prompts(6, [40, 3, 70, 9]), [9, 30, 1, 17])
        assert all(len(g.times.steps.step_s) == len(g.committed) for g in done.values())
        return [
            (done[i].output_ids, done[i].committed, done[i].times.steps.running) for i in range(4)
        ]

    expected = outputs()
    monkeypatch.setattr(Engine, "overlaps", True)
    assert outputs() == expected
