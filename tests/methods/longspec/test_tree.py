"""The tree holds the best paths, and its masks the ancestors."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.tree_growth.reference import GrownTree, add_level, top_tokens
from specbench.methods.longspec.tree import grow
from tests.support.capture import no_host_decisions


def table(seed: int, rows: int, vocab: int) -> Tensor:
    """Logits `[R, V + 1, V]` after each token; the last are those after the root."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab + 1, vocab, generator=generator, dtype=torch.float64) * 2


def tree_of(logits: Tensor, shape: tuple[int, ...]) -> GrownTree:
    """The tree of a draft whose logits depend on the last token alone."""

    def score(level: int, tokens: Tensor | None, paths: Tensor | None) -> Tensor:
        assert (level == 0) == (tokens is None) == (paths is None)
        if tokens is None:
            return logits[:, -1:]
        assert tokens.shape[1] == shape[level - 1]
        return logits.gather(1, tokens[..., None].expand(-1, -1, logits.shape[-1]))

    return grow(shape, score)


def by_hand(logits: Tensor, shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], float]]:
    """One row's paths and scores, level by level, by definition."""
    known: list[tuple[tuple[int, ...], float]] = []
    above: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for width in shape:
        children = [
            (
                (*path, token),
                score + float(torch.log_softmax(logits[path[-1] if path else -1], -1)[token]),
            )
            for path, score in above
            for token in range(logits.shape[-1])
        ]
        above = sorted(children, key=lambda child: -child[1])[:width]
        known += above
    return known


def path_of(tree: GrownTree, row: int, node: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, int(tree.tokens[row, node]))
        assert int(tree.parents[row, node]) < node
        node = int(tree.parents[row, node])
    return tuple(tokens)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 3),
    vocab=st.integers(4, 7),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
)
def test_the_nodes_are_the_best_paths(
    seed: int, rows: int, vocab: int, shape: tuple[int, ...]
) -> None:
    logits = table(seed, rows, vocab)
    tree = tree_of(logits, shape)
    assert tree.tokens.shape == tree.parents.shape == tree.scores.shape == (rows, sum(shape))
    for row in range(rows):
        expected = by_hand(logits[row], shape)
        assert [path_of(tree, row, node) for node in range(sum(shape))] == [p for p, _ in expected]
        scores = torch.tensor([score for _, score in expected], dtype=torch.float64)
        torch.testing.assert_close(tree.scores[row], scores)


def test_the_published_shape_has_68_nodes_and_5_levels() -> None:
    tree = tree_of(table(3, 2, 40), (4, 16, 16, 16, 16))
    assert tree.tokens.shape == (2, 68)
    depths = [len(path_of(tree, 0, node)) for node in range(68)]
    assert depths == sorted(depths)
    assert [depths.count(level) for level in range(1, 6)] == [4, 16, 16, 16, 16]


def test_siblings_are_distinct() -> None:
    tree = tree_of(table(4, 3, 5), (4, 5, 5))
    for row in range(3):
        edges = list(zip(tree.parents[row].tolist(), tree.tokens[row].tolist(), strict=True))
        assert len(set(edges)) == len(edges)


def test_paths_are_the_ancestors() -> None:
    tree = tree_of(table(5, 2, 6), (3, 4, 2, 5))
    for row, node in itertools.product(range(2), range(14)):
        ancestors, at = set(), node
        while at >= 0:
            ancestors.add(at)
            at = int(tree.parents[row, at])
        assert set(tree.paths[row, node].nonzero().flatten().tolist()) == ancestors


def test_a_level_sees_the_paths_of_its_parents() -> None:
    logits = table(6, 1, 5)
    seen = []

    def score(level: int, tokens: Tensor | None, paths: Tensor | None) -> Tensor:
        seen.append(paths)
        if tokens is None:
            return logits[:, -1:]
        return logits.gather(1, tokens[..., None].expand(-1, -1, 5))

    tree = grow((2, 3, 2), score)
    assert seen[0] is None
    assert torch.equal(seen[1], tree.paths[:, :2, :2])  # type: ignore[arg-type]
    assert torch.equal(seen[2], tree.paths[:, 2:5, :5])  # type: ignore[arg-type]


def test_the_best_of_a_node_may_be_worse_than_all_of_anothers() -> None:
    logits = torch.tensor([[[5.0, 4.0, 3.0], [0.0, 0.0, 0.0]]]).log_softmax(-1)
    tree = GrownTree.empty(1, 5, "cpu")
    add_level(tree, torch.tensor([[[0.0, -9.0]]]), torch.tensor([[[3, 4]]]), 0, 2)
    scores, tokens = top_tokens(logits[0], 3)
    add_level(tree, scores[None], tokens[None], 2, 3)
    assert tree.tokens.tolist() == [[3, 4, 0, 1, 2]]
    assert tree.parents.tolist() == [[-1, -1, 0, 0, 0]]
    torch.testing.assert_close(tree.scores[:, 2:], logits[:, 0])


def test_half_types_are_summed_in_float32() -> None:
    logits = table(8, 2, 30).bfloat16()
    tree = tree_of(logits, (4, 8, 8))
    assert tree.scores.dtype == torch.float32
    assert torch.equal(tree.scores, tree_of(logits.float(), (4, 8, 8)).scores)


def test_a_level_without_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="a level without nodes"):
        tree_of(table(0, 1, 4), (2, 0))


def test_nothing_is_decided_by_the_host() -> None:
    logits = table(7, 2, 9)
    with no_host_decisions():
        tree_of(logits, (4, 8, 8))
