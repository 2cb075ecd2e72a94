"""The engine on a CUDA device: the same tokens as on the CPU, and speculation stays exact."""

import pytest
import torch

from specbench.engine.engine import Engine
from specbench.engine.probe import probe
from specbench.engine.sampling import Sampling
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec,
    longspec_tree,
    lookup,
    magicdec,
    prompts,
    tiny_model,
    vegas,
)

pytestmark = pytest.mark.gpu

SPECULATIVE = {
    "vegas": vegas(gamma=4),
    "lookup": lookup(ngram_min=1),
    "longspec": longspec_tree(tree_shape=(4, 16, 16)),
    "longspec, in chains": longspec(),
    **{variant: magicdec(variant) for variant in ("stream", "snapkv", "quest")},
}


def tokens(device: str, method: object, dtype: torch.dtype, sampling: Sampling) -> list[list[int]]:
    model = tiny_model(9, dtype).to(device)
    spare = method.nodes  # type: ignore[attr-defined]
    engine = Engine(model, rows=3, max_len=240, spare=spare)
    outputs = decode(engine, method, prompts(9, [3, 50, 200, 17]), 32, sampling)  # type: ignore[arg-type]
    engine.cache.check_integrity()
    return [outputs[i].output_ids for i in range(4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", SPECULATIVE.values(), ids=SPECULATIVE.keys())
def test_speculation_equals_autoregressive_decoding(method: object, dtype: torch.dtype) -> None:
    greedy = Sampling()
    base = tokens("cuda", autoregressive(), dtype, greedy)
    assert tokens("cuda", method, dtype, greedy) == base
    if dtype is torch.float64:
        assert tokens("cpu", autoregressive(), dtype, greedy) == base


@pytest.mark.parametrize("method", [autoregressive(), vegas(score="random"), *SPECULATIVE.values()])
def test_sampled_tokens_are_those_of_the_cpu(method: object) -> None:
    sampling = Sampling(0.8, 0.95, 20, seed=5)
    cuda = tokens("cuda", method, torch.float64, sampling)
    assert cuda == tokens("cpu", method, torch.float64, sampling)


def test_the_probe_splits_an_iteration() -> None:
    model = tiny_model(9, torch.bfloat16, 2048).to("cuda")
    engine = Engine(model, rows=3, max_len=2048)
    method = vegas(gamma=4)
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
