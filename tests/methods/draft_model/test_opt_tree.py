"""OPT-Tree against its definition in plain Python."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.tree import build_tree
from specbench.methods.base import TreeDraft
from specbench.methods.draft_model.opt_tree import opt_tree
from tests.support.capture import no_host_decisions

Path = tuple[int, ...]


class Language:
    """A drafter whose next token depends on the whole path, `[vocab]` log-probabilities of each."""

    def __init__(self, rows: int, vocab: int, seed: int, sharp: float = 2.0) -> None:
        self.rows, self.vocab, self.seed, self.sharp = rows, vocab, seed, sharp
        self.tokens: list[Tensor] = []
        self.paths: dict[tuple[int, int], Path] = {}

    def after(self, row: int, path: Path) -> Tensor:
        """What follows a path of a row."""
        generator = torch.Generator().manual_seed(hash((self.seed, row, path)) % 2**31)
        logits = torch.randn(self.vocab, generator=generator, dtype=torch.float64) * self.sharp
        return torch.log_softmax(logits, -1)

    @property
    def first(self) -> Tensor:
        """After the roots."""
        return torch.stack([self.after(row, ()) for row in range(self.rows)])

    def expand(self, tokens: Tensor, depth: int, mask: Tensor) -> Tensor:
        """What follows a level's nodes, whose paths are what the mask says that they see."""
        self.tokens.append(tokens)
        flat = torch.cat(self.tokens, 1)
        nodes = tokens.shape[1]
        assert mask.shape == (self.rows, nodes, depth * nodes)
        paths = [[flat[r][mask[r, i]].tolist() for i in range(nodes)] for r in range(self.rows)]
        assert all(len(path) == depth for row in paths for path in row)
        rows = [[self.after(r, tuple(path)) for path in row] for r, row in enumerate(paths)]
        return torch.stack([torch.stack(row) for row in rows])


def never(growing: Tensor) -> bool:
    return False


def paths_of(draft: TreeDraft, row: int) -> set[Path]:
    assert draft.counts is not None
    found: list[Path] = []
    for node in range(int(draft.counts[row])):
        parent = int(draft.parents[row, node])
        assert parent < node
        before = found[parent] if parent >= 0 else ()
        found.append((*before, int(draft.tokens[row, node])))
    assert len(set(found)) == len(found)
    return set(found)


def by_hand(
    language: Language, row: int, nodes: int, depth: int, threshold: float
) -> dict[Path, float]:
    """The tree's paths and their log-probabilities."""
    level: dict[Path, float] = {(): 0.0}
    everything: dict[Path, float] = {}
    total = 0.0
    for _ in range(depth):
        children = {
            (*path, token): worth + float(language.after(row, path)[token])
            for path, worth in level.items()
            for token in range(language.vocab)
        }
        best = sorted(children, key=lambda path: -children[path])[:nodes]
        level = {path: children[path] for path in best}
        everything |= level
        kept = sorted(everything.values(), reverse=True)[:nodes]
        grown = sum(map(math.exp, kept))
        if grown - total <= threshold:
            break
        total = grown
    chosen = sorted(everything, key=lambda path: -everything[path])[:nodes]
    return {path: everything[path] for path in chosen}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 3),
    vocab=st.integers(2, 6),
    nodes=st.integers(1, 9),
    depth=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.1, 0.3, 0.7]),
)
def test_the_tree_is_the_one_of_the_definition(
    seed: int, rows: int, vocab: int, nodes: int, depth: int, threshold: float
) -> None:
    language = Language(rows, vocab, seed)
    draft = opt_tree(language.first, language.expand, nodes, depth, threshold, never)
    for row in range(rows):
        assert paths_of(draft, row) == set(by_hand(language, row, nodes, depth, threshold))


def test_stopping_for_all_changes_nothing() -> None:
    lazy, whole = Language(3, 5, 1, 4.0), Language(3, 5, 1, 4.0)
    stopped = opt_tree(lazy.first, lazy.expand, 6, 8, 0.5, lambda growing: not growing.any())
    ran = opt_tree(whole.first, whole.expand, 6, 8, 0.5, never)
    assert len(lazy.tokens) < len(whole.tokens) == 7
    for row in range(3):
        assert paths_of(stopped, row) == paths_of(ran, row)


def test_certain_paths_keep_their_parents() -> None:
    """A child as likely as its parent must not stand without it."""
    first = torch.full((1, 4), -torch.inf)
    first[0, 2] = 0.0
    draft = opt_tree(first, lambda *args: first[:, None].expand(1, 3, 4), 3, 9, 0.0, never)
    assert paths_of(draft, 0) == {(2,), (2, 2), (2, 2, 2)}
    tree = build_tree(torch.tensor([0]), draft, torch.tensor([9]), 9)
    assert tree.depth[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("poison", [torch.nan, -torch.inf])
def test_tokens_that_cannot_be_drafted_are_left_out(poison: float) -> None:
    first = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).log()
    first[0, 1] = poison
    after = torch.full((1, 4, 4), poison)
    draft = opt_tree(first, lambda *args: after, 4, 3, 0.0, never)
    assert paths_of(draft, 0) == {(0,), (2,)}


def test_every_path_fits_into_a_large_tree() -> None:
    language = Language(1, 2, 3)
    draft = opt_tree(language.first, language.expand, 20, 3, 0.0, never)
    assert paths_of(draft, 0) == {p for n in (1, 2, 3) for p in product((0, 1), repeat=n)}


def test_nothing_is_decided_by_the_host() -> None:
    first = torch.randn(2, 7).log_softmax(-1)
    after = torch.randn(2, 4, 7).log_softmax(-1)
    with no_host_decisions():
        opt_tree(first, lambda *args: after, 4, 3, 0.2, never)
