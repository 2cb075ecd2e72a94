"""The bookkeeping around a verification: two launches do what sixty operations of torch do."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from specbench.config import Queries
from specbench.engine import chunk as reference
from specbench.engine.batch import Batch
from specbench.engine.draft_steps import draft_steps, sums_of_voters
from specbench.kernels.iteration import triton as kernels
from specbench.kernels.iteration import voters as voters_of_kernels
from specbench.methods.base import Draft
from tests.support.buffers import DEVICE

MAX_LEN, VOCAB = 70, 5
STATE = ("tokens", "lengths", "remaining", "active", "history", "deepest")


def random_batch(draw: st.DataObject, rows: int, eos: list[int]) -> Batch:
    """Rows with and without a request, at any point of one."""
    batch = Batch(rows, MAX_LEN, eos, DEVICE)
    for row in range(rows):
        batch.block_table[row] = torch.randperm(50, device=DEVICE)[: batch.block_table.shape[1]] + 1
        length = draw.draw(st.integers(1, 40), label="length")
        left = draw.draw(st.integers(1, 12), label="remaining")
        batch.admit(row, row, length, draw.draw(st.integers(0, VOCAB - 1), label="token"), left)
        if draw.draw(st.booleans(), label="empty"):
            batch.release(row)
    batch.history.random_(VOCAB)
    return batch


def integers(draw: st.DataObject, rows: int, columns: int, label: str) -> Tensor:
    """Few different tokens, so that drafts are right now and then."""
    values = [
        [draw.draw(st.integers(0, VOCAB - 1), label=label) for _ in range(columns)]
        for _ in range(rows)
    ]
    return torch.tensor(values, device=DEVICE).view(rows, columns)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_steps_of_drafts_are_what_torch_makes_of_them(data: st.DataObject) -> None:
    rows, gamma = (
        data.draw(st.integers(1, 4), label="rows"),
        data.draw(st.integers(1, 5), label="g"),
    )
    width = data.draw(st.sampled_from([1, 2 * gamma + 1, 40]), label="width")
    batch = random_batch(data, rows, [])
    reach = batch.lengths[:, None] - 3 + torch.arange(width, device=DEVICE)
    expected = draft_steps(batch, gamma, reach, MAX_LEN)
    found = kernels.draft_steps(batch, gamma, reach, MAX_LEN)
    for name in ("fed", "own", "tails"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_voters_have_the_sums_of_their_draft_steps(data: st.DataObject) -> None:
    rows, gamma, layers, heads = (
        data.draw(st.integers(1, most), label=name)
        for name, most in (("rows", 4), ("g", 5), ("layers", 3), ("heads", 7))
    )
    queries: Queries = data.draw(st.sampled_from(["first+last", "last", "all"]), label="queries")
    batch = random_batch(data, rows, [])
    lse = torch.randn(layers, rows, gamma, heads, device=DEVICE)
    odd = torch.rand(lse.shape, device=DEVICE)
    lse[odd < 0.3], lse[odd < 0.1], lse[odd > 0.95] = -torch.inf, torch.nan, torch.inf
    voters = {"first+last": 2, "last": 1, "all": gamma + 1}[queries]
    expected = torch.full((layers, rows, voters, heads), torch.nan, device=DEVICE)
    found = expected.clone()
    sums_of_voters(batch, queries, lse, expected)
    voters_of_kernels.sums_of_voters(batch, queries, lse, found)
    assert torch.equal(found, expected)


def test_sums_that_are_not_dense_are_refused() -> None:
    sums = torch.zeros(2, 2, 2, 2, device=DEVICE)
    batch = Batch(2, MAX_LEN, [], DEVICE)
    with pytest.raises(ValueError, match="dense"):
        voters_of_kernels.sums_of_voters(batch, "last", sums, sums.transpose(0, 3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_is_what_torch_does(data: st.DataObject) -> None:
    rows, gamma = (
        data.draw(st.integers(1, 4), label="rows"),
        data.draw(st.integers(0, 5), label="g"),
    )
    eos = data.draw(st.sampled_from([[], [0], [0, 3]]), label="eos")
    mine = random_batch(data, rows, eos)
    theirs = deepcopy(mine)
    draft = None
    if gamma:
        counts = None
        if data.draw(st.booleans(), label="counted"):
            most = [data.draw(st.integers(0, gamma), label="count") for _ in range(rows)]
            counts = torch.tensor(most, device=DEVICE)
        # as a method may hand it over: a step of all rows after the other
        tokens = integers(data, rows, gamma, "draft").T.contiguous().T
        draft = Draft(tokens, counts=counts)
    found = kernels.make_chunk(mine, draft, gamma, MAX_LEN)
    expected = reference.make_chunk(theirs, draft, gamma, MAX_LEN)
    for name, value in vars(expected).items():
        assert torch.equal(getattr(found, name), value), name
    best = integers(data, rows, gamma + 1, "best")
    bad = torch.rand(rows, gamma + 1, device=DEVICE) < 0.2
    result = kernels.finish_greedy(mine, found, best, bad)
    wanted = reference.finish_greedy(theirs, expected, best, bad)
    assert torch.equal(result[:, :5], wanted[:, :5])
    for row, count in enumerate(wanted[:, 0].tolist()):
        assert torch.equal(result[row, 5 : 5 + count], wanted[row, 5 : 5 + count])
    for name in STATE:
        left, right = getattr(mine, name), getattr(theirs, name)
        if name == "history":
            # the last column takes the masked writes
            left, right = left[:, :-1], right[:, :-1]
        assert torch.equal(left, right), name
