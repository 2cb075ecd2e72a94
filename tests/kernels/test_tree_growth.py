"""The growth of a tree, a level at a time: both versions, and what a stable sort says."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.tree_growth import reference
from specbench.kernels.tree_growth.reference import GrownTree
from specbench.methods.longspec.tree import grow
from tests.support.buffers import DEVICE, inputs, poison_empty
from tests.support.ptx import before_wait, contracted

pytest.importorskip("triton")
from specbench.kernels.tree_growth import triton
from specbench.kernels.tree_growth.triton import TopLaunch

# numpy, which the interpreter computes with, warns of infinities
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
ROOT = Path(__file__).parents[2]
SMALL = TopLaunch(group=16, chunk=64, num_warps=4)
SHAPE = (4, 16, 16, 16, 16)
NAN, INF = torch.nan, torch.inf


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def sorted_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best by definition."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    tokens = wide.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return wide.log_softmax(-1).gather(1, tokens), tokens


def assert_top(logits: Tensor, k: int, launch: TopLaunch | None = SMALL) -> None:
    expected, tokens = sorted_tokens(logits, k)
    for found in (reference.top_tokens(logits, k), triton.top_tokens(logits, k, launch)):
        assert torch.equal(found[1], tokens)
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


def walked(parents: Tensor) -> Tensor:
    """The paths `[R, N, N]` by a walk from each node up to the root."""
    rows, nodes = parents.shape
    paths = torch.zeros(rows, nodes, nodes, dtype=torch.bool)
    for row, above in enumerate(parents.tolist()):
        for node in range(nodes):
            place = node
            while place >= 0:
                paths[row, node, place] = True
                place = above[place]
    return paths


def levels(seed: int, rows: int, shape: tuple[int, ...], vocab: int) -> list[tuple[Tensor, Tensor]]:
    """Scores and tokens `[R, n, k]` of each level, in halves so that many paths tie."""
    generator = torch.Generator().manual_seed(seed)
    found, above = [], 1
    for width in shape:
        k = min(width, vocab)
        halves = torch.randint(-6, 1, (rows, above, k), generator=generator) / 2
        scores = halves.sort(dim=-1, descending=True).values
        tokens = torch.randint(2**40, (rows, above, k), generator=generator)
        found.append((scores.to(DEVICE), tokens.to(DEVICE)))
        above = width
    return found


def added(
    version: ModuleType, shape: tuple[int, ...], above: list[tuple[Tensor, Tensor]]
) -> GrownTree:
    """A tree with a node to spare, of which nothing is ever written."""
    tree = GrownTree.empty(len(above[0][0]), sum(shape) + 1, DEVICE)
    begin = 0
    for width, (scores, tokens) in zip(shape, above, strict=True):
        version.add_level(tree, scores, tokens, begin, width)
        begin += width
    return GrownTree(
        tree.tokens[:, :begin],
        tree.parents[:, :begin],
        tree.scores[:, :begin],
        tree.paths[:, :begin],
    )


def assert_same(found: GrownTree, expected: GrownTree) -> None:
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.parents, expected.parents)
    assert torch.equal(found.paths, expected.paths)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab", "k"), [(40, 1), (333, 3), (512, 4), (700, 16), (50, 50)])
def test_equals_a_stable_sort(vocab: int, k: int, dtype: torch.dtype) -> None:
    """Rows of a wider buffer; vocabularies that end within a group; more tokens than groups."""
    assert_top(inputs(1, 3, vocab, dtype=dtype, scale=4), k)


@pytest.mark.parametrize("group", [2, 128])
def test_a_larger_vocabulary(group: int) -> None:
    """Whose groups of two would be more than a program holds."""
    assert_top(inputs(2, 1, 5003, dtype=torch.bfloat16, scale=4), 32, TopLaunch(group=group))


@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 200),
    k=st.sampled_from([1, 3, 4, 16, 32]),
    different=st.integers(1, 4),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_ties_go_to_the_lowest_ids(seed: int, vocab: int, k: int, different: int) -> None:
    """Of few values, one of them impossible and one a zero of either sign."""
    values = torch.tensor([0.0, -INF, 1.0, -0.0])[:different]
    generator = torch.Generator().manual_seed(seed)
    logits = values[torch.randint(different, (2, vocab), generator=generator)]
    # a row without a finite logit has no log-probabilities
    logits[:, vocab // 2] = 0.0
    assert_top(logits.to(DEVICE), min(k, vocab), TopLaunch(group=8, chunk=32, num_warps=1))


def test_the_two_zeros_are_equal() -> None:
    logits = torch.zeros(1, 40, device=DEVICE)
    logits[0, ::3] = -0.0
    assert_top(logits, 16)


def test_neighbouring_floats_are_told_apart() -> None:
    """Though they have the same log-probability."""
    logits = torch.full((1, 100), 5.0, device=DEVICE)
    logits[0, 3::7] = 5.0 - 2.0**-21
    logits[0, 5::7] = 5.0 + 2.0**-21
    assert_top(logits, 32)


@pytest.mark.parametrize("version", [reference, triton])
def test_bad_rows_stay_alone_and_within_the_vocabulary(version: ModuleType) -> None:
    good = inputs(3, 1, 43, dtype=torch.float32)
    logits = good.repeat(7, 1)
    logits[1, 5], logits[2, 42], logits[3], logits[4], logits[5, ::2] = NAN, INF, -INF, NAN, -NAN
    scores, tokens = version.top_tokens(logits, 16)
    expected = sorted_tokens(good, 16)
    for row in (0, 6):
        assert torch.equal(tokens[row], expected[1][0])
        torch.testing.assert_close(scores[row], expected[0][0], rtol=1e-5, atol=1e-5)
    assert ((tokens >= 0) & (tokens < 43)).all()


def test_float64_stays_float64() -> None:
    logits = inputs(4, 2, 300, dtype=torch.float64)
    scores, tokens = reference.top_tokens(logits, 9)
    expected = sorted_tokens(logits, 9)
    assert torch.equal(scores, expected[0])
    assert torch.equal(tokens, expected[1])
    tree = GrownTree.empty(1, 4, DEVICE, torch.float64)
    reference.add_level(tree, scores[None, :1], tokens[None, :1], 0, 4)
    assert torch.equal(tree.scores, scores[:1, :4])


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 3),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    vocab=st.integers(9, 12),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_levels_with_ties_equal_the_reference(
    seed: int, rows: int, shape: tuple[int, ...], vocab: int
) -> None:
    above = levels(seed, rows, shape, vocab)
    expected = added(reference, shape, above)
    assert_same(added(triton, shape, above), expected)
    known = sum(shape)
    assert torch.equal(expected.paths[..., :known].cpu(), walked(expected.parents))
    assert not expected.paths[..., known:].any()


@pytest.mark.parametrize(
    ("shape", "vocab"), [((32, 32, 63), 32), ((1, 1, 5, 64), 20), ((4, 9, 20), 5)]
)
def test_wide_and_narrow_levels(shape: tuple[int, ...], vocab: int) -> None:
    """Also where the vocabulary has fewer children for a node than a level has nodes."""
    above = levels(7, 2, shape, vocab)
    assert_same(added(triton, shape, above), added(reference, shape, above))


def test_equal_paths_are_in_the_order_of_their_parents() -> None:
    for version in (reference, triton):
        tree = GrownTree.empty(1, 7, DEVICE)
        tokens = torch.arange(6, device=DEVICE)
        first = torch.tensor([[[-1.0, -2.0]]], device=DEVICE), tokens[None, None, :2]
        version.add_level(tree, *first, 0, 2)
        scores = torch.tensor([[[-2.0, -2.0, -3.0], [-1.0, -1.0, -INF]]], device=DEVICE)
        version.add_level(tree, scores, tokens.view(1, 2, 3), 2, 5)
        assert tree.parents.tolist() == [[-1, -1, 0, 0, 1, 1, 0]]
        assert tree.tokens.tolist() == [[0, 1, 0, 1, 3, 4, 2]]
        assert tree.scores.tolist() == [[-1.0, -2.0, -3.0, -3.0, -3.0, -3.0, -4.0]]


def test_impossible_and_bad_children_are_distinct_nodes() -> None:
    scores = torch.full((2, 2, 5), -INF, device=DEVICE)
    scores[0, :, 0], scores[1, 0], scores[1, 1] = -1.0, -NAN, -1.0
    tokens = torch.arange(20, device=DEVICE).view(2, 2, 5)
    above = [(torch.full((2, 1, 2), -1.0, device=DEVICE), tokens[:, :1, :2]), (scores, tokens)]
    found, expected = (added(version, (2, 9), above) for version in (triton, reference))
    assert found.tokens[:, 2:].tolist() == [[0, 5, 1, 2, 3, 4, 6, 7, 8], [*range(10, 19)]]
    assert torch.equal(found.parents, expected.parents)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.scores, expected.scores, equal_nan=True)


def test_children_may_be_strided_and_rows_are_overwritten() -> None:
    first, second = levels(9, 2, (4, 8), 8)
    scores = second[0].transpose(0, 2).contiguous().transpose(0, 2)
    tokens = second[1].repeat_interleave(2, 2)[..., ::2]
    expected = added(reference, (4, 8), [first, second])
    assert_same(added(triton, (4, 8), [first, (scores, tokens)]), expected)
    tree = GrownTree.empty(2, 13, DEVICE)
    for version in (triton, reference):
        # what an iteration left is not what the next one finds
        for x in vars(tree).values():
            x.fill_(1)
        version.add_level(tree, *first, 0, 4)
        version.add_level(tree, *second, 4, 8)
        assert torch.equal(tree.paths[:, :12], expected.paths)


def test_a_whole_tree_is_the_one_that_longspec_grows() -> None:
    rows, vocab = 1, 60
    logits = [
        inputs(10 + level, rows, above, vocab, dtype=torch.float32, scale=3)
        for level, above in enumerate((1, *SHAPE[:-1]))
    ]
    expected = grow(SHAPE, lambda level, tokens, paths: logits[level])
    for version in (reference, triton):
        above = []
        for level, width in zip(logits, SHAPE, strict=True):
            rest = () if version is reference else (SMALL,)
            scores, tokens = version.top_tokens(level.flatten(0, 1), width, *rest)
            above.append((scores.view(rows, -1, width), tokens.view(rows, -1, width)))
        found = added(version, SHAPE, above)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.parents, expected.parents)
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.paths[..., :-1], expected.paths)
        assert not found.paths[..., -1].any()


@pytest.mark.parametrize("version", [reference, triton])
def test_wrong_inputs(version: ModuleType) -> None:
    logits = inputs(5, 2, 20, dtype=torch.float32)
    for k in (0, 21):
        with pytest.raises(ValueError, match="best tokens"):
            version.top_tokens(logits, k)
    with pytest.raises(ValueError, match="best tokens"):
        version.top_tokens(logits[None], 1)
    assert [x.shape for x in version.top_tokens(logits[:0], 3)] == [(0, 3), (0, 3)]
    scores, tokens = (x[:, None] for x in version.top_tokens(logits, 4))
    tree = GrownTree.empty(2, 6, DEVICE)
    for begin, width in ((-1, 4), (0, 5), (0, 0), (3, 4)):
        with pytest.raises(ValueError, match="node"):
            version.add_level(tree, scores, tokens, begin, width)
    with pytest.raises(ValueError, match="above"):
        version.add_level(tree, scores.repeat(1, 3, 1), tokens.repeat(1, 3, 1), 2, 4)
    with pytest.raises(ValueError, match="children of 2 requests"):
        version.add_level(tree, scores, tokens[..., :3], 0, 4)
    with pytest.raises(ValueError, match="float64"):
        version.add_level(tree, scores.double(), tokens, 0, 4)


def test_what_the_triton_version_leaves_to_the_reference() -> None:
    logits = inputs(5, 2, 20, dtype=torch.float32)
    with pytest.raises(ValueError, match="float64"):
        triton.top_tokens(logits.double(), 1)
    with pytest.raises(ValueError, match="adjacent"):
        triton.top_tokens(logits.T, 1)
    wide = GrownTree.empty(2, 6, DEVICE)
    tree = GrownTree(*(x[:, :5] for x in vars(wide).values()))
    scores, tokens = (x[:, None] for x in triton.top_tokens(logits, 4))
    with pytest.raises(ValueError, match="dense"):
        triton.add_level(tree, scores, tokens, 0, 4)


def test_no_requests() -> None:
    children = torch.empty(0, 1, 4, device=DEVICE)
    for version in (reference, triton):
        version.add_level(GrownTree.empty(0, 9, DEVICE), children, children.long(), 0, 4)


def step() -> None:
    """Every launch of trees of Qwen's and of a wide shape."""
    for dtype, k in ((torch.bfloat16, 16), (torch.bfloat16, 32), (torch.float32, 127)):
        triton.top_tokens(torch.empty(2, 151_936, dtype=dtype), k)
    for nodes, k, begin, width in ((1, 4, 0, 4), (16, 16, 20, 16), (32, 32, 40, 64)):
        tree = GrownTree.empty(2, 127 if nodes == 32 else sum(SHAPE), "cpu")
        scores = torch.empty(2, nodes, k)
        triton.add_level(tree, scores, scores.long(), begin, width)


def main() -> None:
    """Compile, and write what the assembler says of each kernel."""
    from tests.support.sm90 import compile_only

    sys.stdout.write(json.dumps([asdict(kernel) for kernel in compile_only(step)]))


def test_they_compile_for_hopper_and_spill_nothing(tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.kernels.test_tree_growth"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    assert {kernel["name"] for kernel in kernels} == {
        "survey_groups",
        "choose_top",
        "choose_level",
    }
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel["name"]
        assert kernel["shared"] <= 48 * 1024, kernel["name"]
        # everything that is read comes from the kernel ahead
        assert before_wait(kernel["ptx"]) == ["griddepcontrol.launch_dependents"], kernel["name"]
        assert contracted(kernel["ptx"]) == 0, kernel["name"]


if __name__ == "__main__":
    main()
