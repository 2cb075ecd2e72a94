"""The bookkeeping around a verification of trees: three launches do what torch does in hundreds."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from specbench.engine import tree as reference
from specbench.engine.batch import Batch
from specbench.engine.kv_cache import KVCache
from specbench.engine.sampling import Sampling, sample
from specbench.kernels.iteration import tree as kernels
from specbench.methods.base import TreeDraft
from tests.support.buffers import DEVICE, poison_empty
from tests.support.ptx import before_wait
from tests.support.tiny import tiny_config

ROOT = Path(__file__).parents[2]
MAX_LEN, VOCAB = 70, 3
STATE = ("tokens", "lengths", "remaining", "active", "deepest", "block_table")


class Case:
    """Rows before an iteration, with what is in their caches, and their drafts."""

    def __init__(
        self,
        parents: list[list[int]],
        *,
        lengths: list[int],
        left: list[int],
        eos: list[int] | None = None,
        counts: list[int] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        **config: int,
    ) -> None:
        rows, nodes = len(parents), len(parents[0])
        random = torch.Generator().manual_seed(seed)
        self.batch = Batch(rows, MAX_LEN, eos or [], DEVICE, spare=nodes)
        pages = self.batch.block_table.shape[1]
        self.cache = KVCache(tiny_config(**config), rows * pages, dtype, DEVICE)
        for part in (self.cache.keys, self.cache.values):
            part.copy_(torch.randn(part.shape, generator=random))
        order = torch.randperm(rows * pages, generator=random) + 1
        self.batch.block_table.copy_(order.view(rows, pages))
        for row in range(rows):
            token = int(self.few(random))
            self.batch.admit(row, row, lengths[row], token, max(left[row], 1))
            if left[row] == 0:
                self.batch.release(row)
        self.batch.history.copy_(self.few(random, *self.batch.history.shape))
        # as a method may hand it over: a level of all rows after the other
        tokens = self.few(random, nodes, rows).to(DEVICE).T
        counted = None if counts is None else torch.tensor(counts, device=DEVICE)
        self.draft = TreeDraft(tokens, torch.tensor(parents, device=DEVICE), counted)
        self.best = self.few(random, rows, nodes + 1).to(DEVICE)
        self.bad = torch.rand(rows, nodes + 1, generator=random).to(DEVICE) < 0.1
        self.logits = torch.randn(rows, nodes + 1, VOCAB, generator=random).to(DEVICE)

    @staticmethod
    def few(random: torch.Generator, *shape: int) -> Tensor:
        """Few different tokens, so that drafts are right now and then."""
        return torch.randint(VOCAB, shape, generator=random)

    def check(self, gamma: int, sampling: Sampling | None = None) -> Tensor:
        """Both implementations: the same chunks, results, batches and caches; the result."""
        theirs, kv = deepcopy(self.batch), deepcopy(self.cache)
        expected = reference.make_tree(theirs, self.draft, gamma, MAX_LEN)
        found = kernels.make_tree(self.batch, self.draft, gamma, MAX_LEN)
        for name, value in vars(expected).items():
            assert getattr(found, name).dtype == value.dtype, name
            assert torch.equal(getattr(found, name), value), name
        if sampling is None:
            wanted = reference.finish_tree_greedy(kv, theirs, expected, self.best, self.bad, gamma)
            judged = self.cache, self.batch, found, self.best, self.bad
            result = kernels.finish_tree_greedy(*judged, gamma)
        else:
            one_by_one = self.logits, sampling, gamma, sample
            wanted = reference.finish_tree_sampled(kv, theirs, expected, *one_by_one)
            at_once = self.logits, sampling, gamma
            result = kernels.finish_tree_sampled(self.cache, self.batch, found, *at_once)
        assert torch.equal(result, wanted)
        for name in STATE:
            assert torch.equal(getattr(self.batch, name), getattr(theirs, name)), name
        # the last column takes the masked writes
        assert torch.equal(self.batch.history[:, :-1], theirs.history[:, :-1])
        assert torch.equal(self.cache.keys, kv.keys)
        assert torch.equal(self.cache.values, kv.values)
        return result

    def agree(self, row: int, path: list[int]) -> None:
        """The target chooses the way along these nodes, by their index, and not their siblings."""
        above = 0
        for token, node in enumerate(path):
            siblings = self.draft.parents[row] == above - 1
            self.draft.tokens[row, siblings] = (token + 1) % VOCAB
            self.draft.tokens[row, node] = token % VOCAB
            self.best[row, above] = token % VOCAB
            above = node + 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_is_what_torch_does(data: st.DataObject) -> None:
    rows, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    gamma = data.draw(st.integers(1, 6))
    # along the deepest, or anywhere
    parent = st.tuples(st.booleans(), st.integers(0, 99))
    parents = [
        [
            i - 1 if deep else at % (i + 1) - 1
            for i, (deep, at) in enumerate(
                data.draw(st.lists(parent, min_size=nodes, max_size=nodes))
            )
        ]
        for _ in range(rows)
    ]

    def each(least: int, most: int) -> list[int]:
        return data.draw(st.lists(st.integers(least, most), min_size=rows, max_size=rows))

    left = each(0, 8)
    # up to the last token that a request may have
    ends = [MAX_LEN - 1 - max(n, 1) for n in left]
    case = Case(
        parents,
        lengths=[min(pair) for pair in zip(each(1, MAX_LEN), ends, strict=True)],
        left=left,
        eos=data.draw(st.sampled_from([[], [0], [0, 2]])),
        counts=each(0, nodes) if data.draw(st.booleans()) else None,
        seed=data.draw(st.integers(0, 999)),
        num_layers=data.draw(st.integers(1, 3)),
    )
    if data.draw(st.booleans()):
        # the target agrees with a path from some node up
        for row, line in enumerate(parents):
            path = [data.draw(st.integers(0, nodes - 1))]
            while line[path[0]] >= 0:
                path.insert(0, line[path[0]])
            case.agree(row, path)
    case.check(gamma)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_sampled_trees_are_what_draws_one_after_the_other_give(data: st.DataObject) -> None:
    rows, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    parents = [[data.draw(st.integers(-1, i - 1)) for i in range(nodes)] for _ in range(rows)]
    case = Case(parents, lengths=[9, 20, 5][:rows], left=[8, 3, 0][:rows], seed=nodes, num_layers=1)
    sampling = Sampling(
        data.draw(st.sampled_from([0.5, 1.0])),
        data.draw(st.sampled_from([0.7, 1.0])),
        data.draw(st.sampled_from([0, 2])),
        seed=data.draw(st.integers(0, 999)),
    )
    case.check(data.draw(st.integers(1, 4)), sampling)


def test_no_draw_holds_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(logits: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
        drawn.append(len(logits))
        return by_kernel(logits, *rest)  # type: ignore[arg-type]

    by_kernel = kernels.sample
    monkeypatch.setattr(kernels, "sample", counted)
    monkeypatch.setattr(kernels, "_DRAWN", 4 * VOCAB + 1)
    case = Case([[-1, 0, 1, -1], [-1, -1, 0, 0]], lengths=[9, 4], left=[8, 8], num_layers=1)
    case.check(3, Sampling(1.0, seed=3))
    assert drawn == [4, 4, 2]


@pytest.mark.parametrize(("node", "wrong"), [(0, True), (2, True), (3, False)])
def test_logits_that_are_no_numbers_count_where_they_may_be_reached(node: int, wrong: bool) -> None:
    case = Case([CHAIN], lengths=[9], left=[8], counts=[2], num_layers=1)
    case.logits[0, node, 1] = float("nan")
    chunk = kernels.make_tree(case.batch, case.draft, 4, MAX_LEN)
    state = case.cache, case.batch, chunk, case.logits
    assert bool(kernels.finish_tree_sampled(*state, Sampling(1.0), 4)[0, 4]) == wrong


CHAIN = [-1, 0, 1, 2]


def test_a_path_is_moved_from_wherever_it_stands() -> None:
    # the second of the root's children, behind its sibling's own; page borders lie between
    case = Case([[-1, -1, 0, 1, 2, 3, 5, 6]], lengths=[12], left=[20], num_layers=3)
    case.agree(0, [1, 3, 5, 6, 7])
    case.best[0, -1] = 0
    result = case.check(6)
    assert result[0, 1] == 5
    assert case.batch.deepest.tolist() == [8]


def test_nothing_is_committed_behind_an_end_token() -> None:
    case = Case([CHAIN] * 2, lengths=[5, 30], left=[9, 9], eos=[2])
    case.agree(0, [0, 1, 2, 3])
    case.agree(1, [0, 1, 2, 3])
    case.best[:, 4] = 1
    case.bad[:] = False
    # of tokens 0, 1, 2, 0, the third ends
    result = case.check(4)
    assert result[:, :5].tolist() == [[3, 3, 4, 1, 0]] * 2
    assert not case.batch.active.any()
    assert case.batch.lengths.tolist() == [8, 33]


def test_a_row_without_a_request_stays_as_it_is() -> None:
    case = Case([CHAIN] * 3, lengths=[5, 7, 30], left=[9, 0, 9])
    case.bad[:] = True
    for row in range(3):
        case.agree(row, [0, 1, 2, 3])
    before = deepcopy(case.batch)
    result = case.check(4)
    assert result[1, :5].tolist() == [0] * 5
    assert result[0, :5].tolist() == [5, 4, 4, 0, 1]
    for name in ("tokens", "lengths", "remaining", "active"):
        assert torch.equal(getattr(case.batch, name)[1], getattr(before, name)[1])
    assert torch.equal(case.batch.history[1], before.history[1])


@pytest.mark.parametrize(("left", "gamma", "accepted"), [(3, 4, 2), (9, 3, 3), (1, 4, 0)])
def test_no_more_is_accepted_than_is_allowed(left: int, gamma: int, accepted: int) -> None:
    case = Case([CHAIN], lengths=[5], left=[left])
    case.agree(0, [0, 1, 2, 3])
    case.bad[:] = False
    result = case.check(gamma)
    assert result[0, :5].tolist() == [accepted + 1, accepted, accepted, left <= accepted + 1, 0]


def test_positions_stay_within_the_tables() -> None:
    # one token is left, so that the last nodes would stand behind all that a request may have
    case = Case([CHAIN], lengths=[MAX_LEN - 2], left=[1])
    assert kernels.make_tree(case.batch, case.draft, 4, MAX_LEN).positions.max() == MAX_LEN - 1
    case.check(4)


def test_nodes_that_do_not_count_are_never_reached() -> None:
    case = Case([CHAIN], lengths=[5], left=[9], counts=[2])
    case.agree(0, [0, 1, 2, 3])
    # nor do their logits matter
    case.bad[:] = torch.tensor([0, 0, 0, 1, 1])
    assert case.check(4)[0, [1, 2, 4]].tolist() == [2, 2, 0]


def test_of_equal_siblings_the_first_is_taken() -> None:
    case = Case([[-1, -1, 1, 0]], lengths=[5], left=[9])
    case.draft.tokens[:] = 1
    case.best[:] = 1
    assert case.check(3)[0, 1] == 2
    assert case.batch.deepest.tolist() == [4]


# words of the masks, tiles of columns, and the most that there may be
@pytest.mark.parametrize("nodes", [1, 31, 32, 63, 64, 95, 127])
def test_trees_of_many_nodes(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)
    parents = [[i - 1 if i % 5 else i // 5 - 1 for i in range(nodes)]]
    case = Case(parents, lengths=[20], left=[60], seed=nodes, num_layers=1)
    path = [nodes - 1]
    while parents[0][path[0]] >= 0:
        path.insert(0, parents[0][path[0]])
    case.agree(0, path)
    assert case.check(10)[0, 1] > min(len(path), 10) - 4


def test_paths_may_be_longer_than_trees_are_large() -> None:
    case = Case([[-1, 0]], lengths=[20], left=[60])
    case.agree(0, [0, 1])
    assert case.check(20)[0, 1] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_entries_of_every_width_are_moved(dtype: torch.dtype) -> None:
    # heads that fill no power of two, and programs that share an entry's elements
    wide = {"num_kv_heads": 5, "head_dim": 24}
    parents = [[-1, -1, 0, 1, *[3] * 60]]
    case = Case(parents, lengths=[3], left=[90], dtype=dtype, num_heads=5, **wide)
    case.agree(0, [1, 3])
    assert case.check(64)[0, 1] >= 2


def test_more_columns_than_the_masks_have_bits_are_refused() -> None:
    case = Case([[-1] * 128], lengths=[3], left=[9])
    with pytest.raises(ValueError, match="a root and 128 nodes are more than 128 columns"):
        kernels.make_tree(case.batch, case.draft, 4, MAX_LEN)


def launches(rows: int, nodes: int, gamma: int, heads: int, dim: int) -> None:
    """Those of an iteration, in the shapes of a model."""
    batch = Batch(rows, 64, [3, 7], "cpu", spare=nodes)
    config = tiny_config(num_heads=heads, num_kv_heads=heads, head_dim=dim)
    cache = KVCache(config, 9, torch.bfloat16, "cpu")
    tokens = torch.zeros(rows, nodes, dtype=torch.int64)
    for counts in (None, batch.lengths):
        chunk = kernels.make_tree(batch, TreeDraft(tokens, tokens, counts), gamma, 64)
    kernels.finish_tree_greedy(cache, batch, chunk, chunk.tokens, chunk.valid, gamma)


# the defaults of LongSpec and SpecExtend, on Qwen2.5-0.5B and Qwen3-8B; the widest, and the deepest
SHAPES = ((4, 68, 5, 2, 64), (1, 50, 10, 8, 128), (16, 127, 64, 8, 128), (1, 8, 200, 2, 64))


def main() -> None:
    """Compile, and write what the assembler says of each kernel."""
    from functools import partial

    from tests.support.sm90 import compile_only

    for shape in SHAPES:
        kernels = [asdict(kernel) for kernel in compile_only(partial(launches, *shape))]
        sys.stdout.write(json.dumps(kernels) + "\n")


def test_they_compile_for_hopper(tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.kernels.test_iteration_tree"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(line)
        assert [kernel["name"] for kernel in found] == [
            *["build_tree"] * 2,
            "walk_tree",
            "move_path",
        ]
        for kernel in found:
            assert kernel["stack"] == 0, kernel["name"]
            early = {name.split(".")[0] for name in before_wait(kernel["ptx"])}
            assert early <= {"griddepcontrol"}, kernel["name"]
        # keys and values are moved 16 bytes at a time, all read before any is written
        moves = found[-1]["ptx"]
        read, _, written = moves.rpartition("bar.sync")
        assert "ld.global.v4.b32" in read
        assert "ld.global" not in written
        assert "st.global.v4.b32" in written
        assert "st.global" not in read


if __name__ == "__main__":
    main()
