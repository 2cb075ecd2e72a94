"""The block on the engine's kernels says what it says in plain torch, at every depth."""

import pytest
import torch

pytest.importorskip("triton")

from specbench.engine.engine import Engine
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.methods.longspec.method import LongSpec
from tests.support.buffers import DEVICE
from tests.support.tiny import GREEDY, longspec, longspec_tree, prompts, tiny_model

SHAPES = {
    "llama": {},
    "qwen2": {"qkv_bias": True, "tie_word_embeddings": True, "num_heads": 6, "num_kv_heads": 2},
    "mlp bias": {"mlp_bias": True},
}
TREE = (2, 3, 3)
# the interpreter takes a quarter of a minute for each
SLOW = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


def decoding(method: LongSpec, backend: str, rows: int, **shape: object) -> Engine:
    """Requests shorter and longer than the window, after one iteration."""
    model = tiny_model(3, torch.float32, 80, **shape).to(DEVICE)
    engine = Engine(model, rows=rows, max_len=80, backend=backend, spare=method.nodes)
    engine.use(method, GREEDY)
    for row, ids in enumerate(prompts(3, [3, 29][:rows])):
        engine.admit(row, row, ids, 30)
    return engine


def forwards(method: LongSpec, engine: Engine) -> list[torch.Tensor]:
    """Logits at each depth of some fixed drafts."""
    batch, said = engine.batch, []
    method.catch_up(batch)
    tokens = batch.tokens[:, None]
    paths = torch.zeros(len(tokens), 1, 0, dtype=torch.bool, device=tokens.device)
    generator = torch.Generator().manual_seed(1)
    fed = 0
    for depth, width in enumerate(method.widths):
        if depth:
            fed += width
            tokens = torch.randint(5, 30, (batch.rows, width), generator=generator).to(DEVICE)
            paths = torch.rand(batch.rows, width, fed, generator=generator).to(DEVICE) < 0.5
            paths[..., -width:] = torch.eye(width, dtype=torch.bool, device=DEVICE)
        said.append(method.score(batch, depth, tokens, paths))
    return said


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("tree", "qwen2"),
        ("chain", "mlp bias"),
        pytest.param("tree", "llama", marks=SLOW),
        pytest.param("chain", "qwen2", marks=SLOW),
    ],
)
def test_levels_equal_the_block(kind: str, name: str) -> None:
    def make() -> LongSpec:
        made = longspec_tree(tree_shape=TREE) if kind == "tree" else longspec(gamma=3)
        made.window = 9
        return made

    ours, theirs = make(), make()
    engines = [
        decoding(ours, "triton", 2, **SHAPES[name]),
        decoding(theirs, "sdpa", 2, **SHAPES[name]),
    ]
    assert ours.levels is not None
    assert theirs.levels is None
    for _ in range(2):
        for mine, expected in zip(
            forwards(ours, engines[0]), forwards(theirs, engines[1]), strict=True
        ):
            torch.testing.assert_close(mine.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
        assert engines[0].step().tokens == engines[1].step().tokens


def test_many_rows_take_products_of_the_library() -> None:
    ours, theirs = longspec_tree(tree_shape=TREE), longspec_tree(tree_shape=TREE)
    ours.window = theirs.window = 9
    model = tiny_model(3, torch.float32, 80).to(DEVICE)
    engine = Engine(model, rows=2, max_len=80, backend="triton", spare=ours.nodes)
    engine.compute = TritonCompute(model, engine.cache, Fusion(0, 0, 0, 0, 0))
    engine.use(ours, GREEDY)
    for row, ids in enumerate(prompts(3, [3, 29])):
        engine.admit(row, row, ids, 30)
    plain = decoding(theirs, "sdpa", 2)
    for mine, expected in zip(forwards(ours, engine), forwards(theirs, plain), strict=True):
        torch.testing.assert_close(mine.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
