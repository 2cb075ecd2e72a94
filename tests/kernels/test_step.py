"""All layers of a draft step in one launch, against the model's forward."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.engine.dummy import SHAPES, randomise
from specbench.engine.forward import SparseAttention
from specbench.engine.graph import capture
from specbench.engine.hf_config import from_hf
from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.model import Transformer
from tests.support.buffers import DEVICE, as_accurate, poison_empty
from tests.support.paged import randn
from tests.support.tiny import tiny_model

pytest.importorskip("triton")
from specbench.engine.resident_step import ResidentStep
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.kernels.step import plan as planning
from specbench.kernels.step import triton as step
from specbench.kernels.step.plan import StepLaunch
from specbench.kernels.step.weights import covers

REAL = "qwen2.5-coder-0.5b"
# of the tail: rows of one batch differ in how much of it they see
TAIL, PAGES = 3, 3
ODD = {"num_heads": 6, "hidden_size": 40, "intermediate_size": 72, "head_dim": 12, "num_layers": 3}
CASES = {
    "one row": (1, 1, {}, torch.float32),
    "a program for each tile": (2, 17, {"qkv_bias": True, "num_heads": 6}, torch.float32),
    "three rows, odd sizes": (3, 5, ODD, torch.float32),
    "a list for all heads": (3, 20, {"qkv_bias": True}, torch.float32),
    "sixteen rows": (16, 17, {"qkv_bias": True, "num_heads": 6}, torch.bfloat16),
    "seventeen rows": (17, 9, {}, torch.float32),
}
SMALL = StepLaunch(num_warps=2, entries=16, gate_up=(16, 16, 2), down=(16, 16, 2))


def place(rows: int, kept: int, sets: int, layers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions, slots, selected entries and tails of requests that own `PAGES` pages each."""
    generator = torch.Generator().manual_seed(rows)
    first = (1 + PAGES * torch.arange(rows)) * PAGE_SIZE
    selected = torch.full((layers, rows, sets, kept), -1, dtype=torch.int32)
    tails = torch.full((rows, TAIL), -1)
    for row in range(rows):
        for layer in range(layers):
            for head in range(sets):
                chosen = torch.randperm(30, generator=generator)[: max(0, kept - row % 3)]
                selected[layer, row, head, : len(chosen)] = first[row] + chosen
        tails[row, : 1 + row % TAIL] = first[row] + 30 + torch.arange(1 + row % TAIL)
    behind = torch.arange(rows) % TAIL
    slots = first + 30 + behind
    if rows > 2:
        # one that does not draft any more
        slots[1], tails[1] = -1, -1
    return tuple(x.to(DEVICE) for x in (30 + behind, slots, selected, tails))  # type: ignore[return-value]


def history(model: Transformer, rows: int) -> KVCache:
    cache = KVCache(model.config, rows * PAGES, model.dtype, DEVICE)
    for seed, entries in enumerate((cache.keys, cache.values)):
        entries.copy_(randn(seed, *entries.shape))
    return cache


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_the_models_forward(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, kept, changes, dtype = CASES[case]
    sets = 1 if "all heads" in case else 2
    monkeypatch.setattr(step, "choose", lambda *_: SMALL)
    if "each tile" in case:
        monkeypatch.setattr(planning, "_INTERPRETED", 11)
    model, exact = (tiny_model(4, d, **changes).to(DEVICE) for d in (dtype, torch.float64))
    exact.load_state_dict(model.state_dict())
    positions, slots, selected, tails = place(rows, kept, sets, model.config.num_layers)
    tokens = torch.arange(rows, device=DEVICE)[:, None] % 32
    heads = model.config.num_heads
    found = []
    with torch.inference_mode():
        for each, compute in ((exact, None), (model, None), (model, Fusion(step=64))):
            cache = history(each, rows)
            lse = torch.zeros(len(selected), rows, heads, dtype=torch.float64, device=DEVICE)
            lse = lse if each is exact else lse.float()
            where = selected.long() if compute is None else selected, tails, slots[:, None]
            attention = SparseAttention(cache, *where, 0.3, lse)
            forward = each
            if compute is not None:
                poison_empty(monkeypatch)
                made = TritonCompute(each, cache, compute)
                assert made._resident_step is not None
                forward = made.hidden
            out = forward(tokens, positions[:, None], attention)
            found.append((out, lse, cache.keys[:, 1:], cache.values[:, 1:]))
    drafting = (slots >= 0).cpu()
    for truth, expected, ours in zip(*found, strict=True):
        terms = model.config.intermediate_size
        if truth.shape[0] == rows:
            truth, expected, ours = (x[drafting] for x in (truth, expected, ours))
        if truth.dim() == 3 and truth.shape[1] == rows:
            truth, expected, ours = (x[:, drafting] for x in (truth, expected, ours))
        as_accurate(ours, expected, truth, terms)
    again = ResidentStep(model, cache)
    for _ in range(2):
        again(tokens[:, 0], positions, slots, attention)
    for space in again._workspaces.values():
        assert not any(x.any() for x in (space.barrier, space.counters, space.arrivals))


def test_what_the_kernel_does_not_take() -> None:
    assert covers(tiny_model(0, torch.float32, qkv_bias=True))
    for change in ({"qk_norm": True}, {"o_bias": True}, {"mlp_bias": True}):
        assert not covers(tiny_model(0, torch.float32, **change))
    assert not covers(tiny_model(0, torch.float16))


LAUNCHES = {
    "the table's": None,
    "two programs a multiprocessor": StepLaunch(2, 4, 128, (32, 128, 3), (64, 64, 5)),
    "nothing ahead": StepLaunch(ahead=False),
}


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_real_models_step(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = LAUNCHES[name]
    if launch is not None:
        monkeypatch.setattr(step, "choose", lambda *_: launch)
    config = replace(from_hf(SHAPES[REAL], REAL), num_layers=4, vocab_size=1000)
    model, exact = (Transformer(config, 64, d, DEVICE) for d in (torch.bfloat16, torch.float64))
    randomise(model, 0)
    exact.load_state_dict(model.state_dict())
    positions, slots, selected, tails = place(rows, 30, 2, 4)
    tokens = torch.arange(rows, device=DEVICE)[:, None]
    where = selected, tails, slots[:, None]
    scale = config.head_dim**-0.5
    with torch.inference_mode():
        attention = SparseAttention(history(exact, rows), selected.long(), *where[1:], scale)
        truth = exact(tokens, positions[:, None], attention)
        cache = history(model, rows)
        attention = SparseAttention(cache, *where, scale)
        chain = TritonCompute(model, cache).hidden(tokens, positions[:, None], attention)
        compute = TritonCompute(model, cache, Fusion(step=64))
        graph, out = capture(
            lambda: compute.hidden(tokens, positions[:, None], attention),
            torch.cuda.graph_pool_handle(),
        )
        found = []
        for _ in range(20):
            graph.replay()
            found.append(out.clone())
    drafting = slots >= 0
    as_accurate(found[0][drafting], chain[drafting], truth[drafting], config.intermediate_size)
    assert all(torch.equal(x[drafting], found[0][drafting]) for x in found)
