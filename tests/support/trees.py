"""A method whose drafts are random trees, some of their nodes the target's own continuation."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.methods.base import EngineMethod, Parameters, TreeDraft


class TreeParameters(Parameters):
    """Size of the trees."""

    gamma: int = 4
    nodes: int = 9
    seed: int = 0
    hits: float = 0.7


@dataclass
class Node:
    """A node by its parent's index, its token, and the tokens from the root's child to it."""

    parent: int
    token: int
    path: list[int] = field(default_factory=list)


class RandomTrees(EngineMethod):
    """Trees in topological order; deeper than they should be, too, and with equal siblings.

    Parameters
    ----------
    parameters : TreeParameters
    known : mapping
        The whole sequence of each request, which a share `hits` of the nodes goes along.
    vocab : int
    """

    name = "random-trees"
    summary = "for tests"
    parameters_type = TreeParameters
    parameters: TreeParameters

    def __init__(
        self, parameters: TreeParameters, known: Mapping[int, Sequence[int]], vocab: int
    ) -> None:
        super().__init__(parameters)
        self.known, self.vocab = known, vocab

    @property
    def gamma(self) -> int:
        """Depth."""
        return self.parameters.gamma

    @property
    def nodes(self) -> int:
        """Nodes."""
        return self.parameters.nodes

    def draft(self, batch: Batch) -> TreeDraft:
        """A tree of each row, which depends on its request and length alone."""
        rows = [
            self._grow(int(r), int(n)) for r, n in zip(batch.request, batch.lengths, strict=True)
        ]
        counts = [len(tree) for tree in rows]
        padded = [tree + [Node(0, 0)] * (self.nodes - len(tree)) for tree in rows]

        def column(name: str) -> Tensor:
            return torch.tensor([[getattr(node, name) for node in tree] for tree in padded])

        return TreeDraft(column("token"), column("parent"), torch.tensor(counts))

    def _grow(self, request: int, length: int) -> list[Node]:
        p = self.parameters
        chance = random.Random(f"{p.seed} {request} {length}")
        ahead = list(self.known.get(request, ()))[length + 1 :]
        tree: list[Node] = []
        for index in range(chance.randint(0, p.nodes)):
            best = max(range(-1, index), key=lambda i: len(tree[i].path) if i >= 0 else 0)
            parent = best if chance.random() < p.hits else chance.randint(-1, index - 1)
            path = tree[parent].path if parent >= 0 else []
            token = chance.randrange(self.vocab)
            depth = len(path)
            if chance.random() < p.hits and depth < len(ahead) and path == ahead[:depth]:
                token = ahead[depth]
            tree.append(Node(parent, token, [*path, token]))
        return tree
