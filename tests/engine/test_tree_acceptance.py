"""The acceptance rule for trees, without a model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.acceptance import accept_tree, accept_tree_greedy
from specbench.engine.sampling import Sampling, probabilities
from specbench.engine.tree import Tree, build_tree
from specbench.methods.base import TreeDraft

VOCAB = 4
DRAWS = 40_000
GREEDY = Sampling()


def accept(
    logits: Tensor, tree: Tree, deepest: int, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits)
    request = torch.arange(rows)
    accepted, following, path = accept_tree(
        logits,
        tree.tokens,
        tree.parents,
        tree.valid,
        deepest,
        sampling,
        request,
        torch.full_like(request, 10),
    )
    assert path.shape == (rows, deepest)
    assert (accepted >= 0).all()
    assert (accepted <= deepest).all()
    assert ((following >= 0) & (following < logits.shape[-1])).all()
    return accepted, following, path


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    parents=st.lists(st.integers(0, 99), min_size=1, max_size=12),
    data=st.data(),
    deepest=st.integers(1, 5),
)
def test_greedy_acceptance_is_a_walk_along_the_arg_max(
    parents: list[int], data: st.DataObject, deepest: int
) -> None:
    nodes = len(parents)
    parent = [p % (i + 1) - 1 for i, p in enumerate(parents)]
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes))
    best = data.draw(st.lists(st.integers(0, 2), min_size=nodes + 1, max_size=nodes + 1))
    count = data.draw(st.integers(0, nodes))
    allowed = data.draw(st.integers(0, deepest))
    draft = TreeDraft(torch.tensor([tokens]), torch.tensor([parent]), torch.tensor([count]))
    tree = build_tree(torch.tensor([0]), draft, torch.tensor([allowed]), deepest)
    logits = torch.nn.functional.one_hot(torch.tensor([best]), VOCAB).double()
    accepted, following, path = accept(logits, tree, deepest, GREEDY)
    at, way = 0, []
    while len(way) < allowed:
        found = [i + 1 for i in range(count) if parent[i] + 1 == at and tokens[i] == best[at]]
        if not found:
            break
        at = found[0]
        way.append(at)
    assert int(accepted) == len(way)
    assert path[0, : len(way)].tolist() == way
    assert (path[0, len(way) :] == at).all()
    assert int(following) == best[at]
    # of the arg-max alone
    shape = tree.tokens, tree.parents, tree.valid
    chosen = accept_tree_greedy(torch.tensor([best]), *shape, deepest)
    assert all(map(torch.equal, chosen, (accepted, following, path)))


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, seed=3), Sampling(0.6, 0.9, seed=3), Sampling(1.5, 1.0, 2, 3)]
)
def test_what_is_committed_follows_p(sampling: Sampling) -> None:
    """Two of the root's children and one grandchild are drafted; the target is a table."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(4, VOCAB, generator=generator, dtype=torch.float64)
    draft = TreeDraft(torch.tensor([[0, 1, 2]]), torch.tensor([[-1, -1, 1]]))
    tree = build_tree(torch.tensor([3]), draft, torch.tensor([2]), 2)
    many = Tree(*(part.expand(DRAWS, *part.shape[1:]) for part in vars(tree).values()))
    accepted, following, path = accept(table.expand(DRAWS, 4, VOCAB), many, 2, sampling)
    p = probabilities(table, sampling)
    committed = many.tokens.gather(1, path)
    first = torch.where(accepted > 0, committed[:, 0], following)
    assert_follows(first, p[0])
    for child in (1, 2):
        there = (accepted > 0) & (path[:, 0] == child)
        if there.sum() > 100:
            second = torch.where(accepted > 1, committed[:, 1], following)
            assert_follows(second[there], p[child])
    deep = accepted == 2
    if deep.sum() > 100:
        assert_follows(following[deep], p[3])


def assert_follows(tokens: Tensor, p: Tensor) -> None:
    """No token further from p than five standard deviations."""
    share = tokens.bincount(minlength=VOCAB).double() / len(tokens)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / len(tokens)).sqrt()).all()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0.9, 3, 1)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_invalid_row_is_still_in_range(sampling: Sampling, value: float) -> None:
    """Masked rows compute garbage; `accept` checks that it is a token all the same."""
    draft = TreeDraft(torch.ones(2, 3).long(), torch.tensor([[-1, 0, 0]] * 2))
    tree = build_tree(torch.zeros(2).long(), draft, torch.tensor([2, 0]), 2)
    accepted, _, _ = accept(torch.full((2, 4, VOCAB), value), tree, 2, sampling)
    assert accepted[1] == 0
