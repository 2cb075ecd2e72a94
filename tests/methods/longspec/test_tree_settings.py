"""LongSpec's trees: what they hold, what is refused, and what records say."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from specbench.bench.arms import build_arms
from specbench.bench.memory import plan_memory
from specbench.config import RunConfig
from specbench.config_build import build_config
from specbench.engine import reference_compute
from specbench.engine.engine import Engine
from specbench.engine.forward import TreeAttention
from specbench.engine.iteration import iterate
from specbench.engine.sampling import Sampling
from specbench.errors import UsageError
from specbench.methods.longspec.chain_method import LongSpecChain
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.tree_method import LongSpecTree, LongSpecTreeParameters
from specbench.methods.longspec.weights import save
from tests.support.capture import no_host_decisions
from tests.support.memory import peak_bytes
from tests.support.tiny import (
    GREEDY,
    longspec_tree,
    prompts,
    random_block,
    tiny_config,
    tiny_model,
)

SAMPLED = Sampling(0.8, 0.9, 20, seed=2)
PUBLISHED = (4, 16, 16, 16, 16)


def arms(**changes: object) -> list:
    given = {"method": "longspec", "draft_weights": "dummy", "baseline": False}
    return build_arms(build_config(given | changes))


def test_trees_are_what_is_drafted_unless_chains_are_asked_for() -> None:
    (arm,) = arms()
    assert isinstance(arm.method, LongSpecTree)
    names = ("drafts", "tree_shape", "gamma", "nodes")
    shown = {name: arm.info.parameters[name] for name in names}
    assert shown == {"drafts": "tree", "tree_shape": list(PUBLISHED), "gamma": 5, "nodes": 68}
    assert arm.name == "longspec"
    (arm,) = arms(drafts="chain", gamma=6)
    assert isinstance(arm.method, LongSpecChain)
    assert arm.info.parameters["gamma"] == 6
    with pytest.raises(UsageError, match=r"--gamma is no setting .*choose longspec --drafts chain"):
        arms(gamma=6)
    with pytest.raises(UsageError, match="--tree-shape is no setting of longspec"):
        arms(drafts="chain", tree_shape=(2, 2))


def test_a_shape_keeps_its_equal_levels(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("tree_shape: [2, 2, 2]\n")
    assert build_config({}, file).tree_shape == (2, 2, 2)
    file.write_text("tree_shape: 7\n")
    assert build_config({}, file).tree_shape == (7,)


@pytest.mark.parametrize("shape", [(), (2, 0), (64, 64), (1,) * 65])
def test_shapes_that_cannot_be_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        LongSpecTreeParameters(tree_shape=shape)


def test_a_level_needs_enough_tokens() -> None:
    model = tiny_config(vocab_size=5)
    longspec_tree(tree_shape=(5, 25, 90)).check(RunConfig(), model, 100)
    with pytest.raises(UsageError, match=r"level 2 of --tree-shape has 16 nodes, .*10 at most"):
        longspec_tree(tree_shape=(2, 16)).check(RunConfig(), model, 100)


def test_a_tree_must_be_shallower_than_the_window(tmp_path: Path) -> None:
    save(random_block(DraftConfig.of(tiny_config(), window=3)), tmp_path)
    for shape, fits in (((4, 8), True), ((1, 1, 1), False)):
        settings = LongSpecTreeParameters(draft_weights=str(tmp_path), tree_shape=shape)
        method = LongSpecTree(settings)
        if fits:
            assert method.memory_bytes(tiny_config(), 1, 100, torch.float32) > 0
            continue
        with pytest.raises(UsageError, match=r"3 deep, .*below the 3 tokens .*fewer levels"):
            method.memory_bytes(tiny_config(), 1, 100, torch.float32)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_memory_is_the_same_at_any_context_and_as_planned(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one request's keys and values in order are beside what is looked at
    monkeypatch.setattr(reference_compute, "paged_attention", lambda q, *rest: torch.zeros_like(q))
    sizes, plans, peaks = set(), set(), set()
    for max_len in (2_000, 30_000):
        model = tiny_model(4, torch.float32, max_len, vocab_size=5_000)
        engine = Engine(model, rows=2, max_len=max_len, spare=68)
        method = longspec_tree(window=512, tree_shape=PUBLISHED)
        engine.use(method, sampling)
        batch = engine.batch
        batch.lengths.fill_(max_len - 100)
        ring = [method.ring.keys, method.ring.values]
        # of whole pages
        assert all(part.shape == (2, 36 * 16, 2, 8) for part in ring)
        sizes.add(sum(tensor.nbytes for tensor in [*method.block.parameters(), *ring]))
        others = [value for value in vars(method).values() if isinstance(value, Tensor)]
        assert sum(tensor.numel() for tensor in others) == 512 + 6, "indices of window and path"
        peaks.add(peak_bytes(lambda m=method, b=batch: m.draft(b)))
        plan = plan_memory(
            engine.config,
            engine.dtype,
            [LongSpecTree(method.parameters)],
            rows=2,
            max_len=max_len,
            prefill_chunk=1,
            sampled=not sampling.greedy,
        )
        plans.add(plan.method)
        assert plan.kv_cache == engine.cache.keys.nbytes + engine.cache.values.nbytes
        # what drafting takes for a moment, verification has given back, and takes again
        assert max(peaks) <= plan.working
    assert len(sizes) == len(plans) == len(peaks) == 1
    assert sizes == plans


def test_nothing_is_decided_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole iteration, but for the reference kernels, which read lengths."""
    monkeypatch.setattr(reference_compute, "paged_attention", lambda q, *rest: torch.zeros_like(q))
    monkeypatch.setattr(TreeAttention, "attend", lambda self, q, *rest: torch.zeros_like(q))
    engine = Engine(tiny_model(5), rows=3, max_len=60, spare=68)
    method = longspec_tree(tree_shape=PUBLISHED)
    for sampling in (GREEDY, SAMPLED):
        engine.use(method, sampling)
        for row, ids in enumerate(prompts(5, [4, 37])):
            engine.admit(row, row, ids, 20)
        with no_host_decisions():
            iterate(engine)
        engine.release_all()
