"""The engine on a CUDA device: the same tokens as on the CPU, and speculation stays exact."""

import gc
from collections.abc import Callable
from inspect import unwrap

import pytest
import torch

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.engine.probe import probe
from specbench.engine.sampling import Sampling
from specbench.methods.base import EngineMethod
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    prompts,
    self_tree,
    specextend,
    stream_draft,
    tiny_model,
    vegas,
    with_draft,
)

pytestmark = pytest.mark.gpu

SPECULATIVE = {
    "vegas": vegas(gamma=4),
    "lookup": lookup(ngram_min=1),
    "longspec": longspec_tree(tree_shape=(4, 16, 16)),
    "longspec, in chains": longspec(),
    **{variant: magicdec(variant) for variant in ("stream", "snapkv", "quest")},
    "specextend": specextend(),
    "specextend, all rows": specextend(collect="full"),
    "specextend, in trees": self_tree(),
}


def tokens(
    device: str, method: EngineMethod, dtype: torch.dtype, sampling: Sampling
) -> list[list[int]]:
    model = tiny_model(9, dtype).to(device)
    engine = Engine(model, rows=3, max_len=240, spare=method.nodes)
    outputs = decode(engine, method, prompts(9, [3, 50, 200, 17]), 32, sampling)
    if device == "cuda" and dtype is torch.float32:
        assert engine.graph_mode(method) == "full"
    engine.cache.check_integrity()
    return [outputs[i].output_ids for i in range(4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", SPECULATIVE.values(), ids=SPECULATIVE.keys())
def test_speculation_equals_autoregressive_decoding(
    method: EngineMethod, dtype: torch.dtype
) -> None:
    greedy = Sampling()
    base = tokens("cuda", autoregressive(), dtype, greedy)
    assert tokens("cuda", method, dtype, greedy) == base
    if dtype is torch.float64:
        assert tokens("cpu", autoregressive(), dtype, greedy) == base


@pytest.mark.parametrize("method", [autoregressive(), vegas(score="random"), *SPECULATIVE.values()])
def test_sampled_tokens_are_those_of_the_cpu(method: EngineMethod) -> None:
    sampling = Sampling(0.8, 0.95, 20, seed=5)
    cuda = tokens("cuda", method, torch.float64, sampling)
    assert cuda == tokens("cpu", method, torch.float64, sampling)


@pytest.mark.parametrize("make", [with_draft, stream_draft])
def test_a_small_model_drafts_in_the_graph(make: Callable[[Transformer], EngineMethod]) -> None:
    sampling = Sampling()
    method = make(tiny_model(4, torch.float32, num_layers=1).to("cuda"))
    base = tokens("cuda", autoregressive(), torch.float32, sampling)
    assert tokens("cuda", method, torch.float32, sampling) == base


@pytest.mark.parametrize(
    "method",
    [vegas(gamma=4), magicdec("quest"), magicdec("stream"), specextend()],
    ids=["vegas", "quest", "stream", "specextend"],
)
def test_the_probe_splits_an_iteration(method: EngineMethod) -> None:
    model = tiny_model(9, torch.bfloat16, 2048).to("cuda")
    engine = Engine(model, rows=3, max_len=2048)
    engine.use(method, Sampling())
    for row, ids in enumerate(prompts(9, [300, 500, 700])):
        engine.admit(row, row, ids, 1200)
    found = probe(engine, turns=3)
    assert 0 < found.frozen < 10 * found.iteration
    for part in (found.split, found.frozen_split):
        assert part.phases["draft"] > part.phases["sampling"] > 0
        kernels = sum(part.phases.values()) + part.other
        assert part.total == pytest.approx(kernels + part.gaps)
        assert sum(part.by_kernel.values()) == pytest.approx(kernels)
    assert found.split.phases["selection"] > 0
    assert found.frozen_split.phases["selection"] == 0
    engine.release_all()


def test_a_captured_engine_that_nobody_has_does_no_harm_to_the_next() -> None:
    """The collector frees it when it likes, and a graph freed within a capture would break it."""
    model = tiny_model(9, torch.float32).to("cuda")
    limits = gc.get_threshold()
    try:
        for _ in range(2):
            engine = Engine(model, rows=2, max_len=64)
            gc.set_threshold(1)
            engine.use(vegas(gamma=2), Sampling())
            gc.set_threshold(*limits)
            assert engine.overlaps
            # an engine that refers to itself is freed by the collector alone
            engine.__dict__["itself"] = engine
            del engine
    finally:
        gc.set_threshold(*limits)


def test_the_step_in_which_a_request_ends_does_not_wait_for_the_next() -> None:
    model = tiny_model(9, torch.bfloat16, 2048).to("cuda")
    engine = Engine(model, rows=2, max_len=2048)
    engine.use(vegas(gamma=4), Sampling())
    engine.admit(0, 0, prompts(9, [300])[0], 100)
    engine.launch()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        # without the check of the pages that the tests add: it reads the device
        unwrap(Engine.release)(engine, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine.collect()


@pytest.mark.parametrize("method", [vegas(gamma=4), longspec_tree(tree_shape=(4, 16))])
def test_graphs_are_replayed_after_memory_pressure(method: EngineMethod) -> None:
    """What a graph reads and writes stays its own, whatever the allocator gives to others."""
    model = tiny_model(9, torch.float32).to("cuda")
    engine = Engine(model, rows=3, max_len=240, spare=method.nodes)
    ids = prompts(9, [3, 50, 200])
    before = decode(engine, method, ids, 24)
    assert engine.overlaps
    free, _ = torch.cuda.mem_get_info()
    # everything that the allocator may reuse is taken, overwritten, given back and taken again
    for share in (0.9, 0.5):
        held = torch.full((int(share * free),), 255, dtype=torch.uint8, device="cuda")
        small = [torch.full((2**k,), torch.nan, device="cuda") for k in range(8, 22)]
        del held
        torch.cuda.empty_cache()
        after = decode(engine, method, ids, 24)
        assert {i: g.output_ids for i, g in after.items()} == {
            i: g.output_ids for i, g in before.items()
        }
        del small
    engine.check_integrity()
