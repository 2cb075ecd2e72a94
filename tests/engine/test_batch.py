"""The rows' bookkeeping: what is committed, when a request ends, and where its KV goes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.batch import Batch, slots_of

EOS = 9


def running(remaining: list[int], eos: list[int] | None = None, length: int = 20) -> Batch:
    """A batch whose rows all decode, each with so many tokens to go; request r has length + r."""
    batch = Batch(len(remaining), 100, [EOS] if eos is None else eos, "cpu")
    for row, count in enumerate(remaining):
        batch.reserve(row, [1 + row * 7 + i for i in range(7)])
        batch.admit(row, request=50 + row, length=length + row, token=1, remaining=count)
    return batch


@dataclass
class Outcome:
    """One row of an iteration, as plain numbers."""

    tokens: list[int]
    accepted: int
    ended: bool


def commit(
    batch: Batch, drafts: list[list[int]] | None, accepted: list[int], following: list[int]
) -> list[Outcome]:
    made = batch.commit(
        None if drafts is None else torch.tensor(drafts),
        torch.tensor(accepted),
        torch.tensor(following),
    )
    assert made.tokens.shape == (batch.rows, 1 if drafts is None else len(drafts[0]) + 1)
    columns = (made.tokens, made.count, made.accepted, made.ended)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Outcome(tokens[:count], accepted, ended) for tokens, count, accepted, ended in rows]


def test_accepted_drafts_and_the_following_token_are_committed() -> None:
    batch = running([10, 10, 10])
    drafts = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    assert commit(batch, drafts, [0, 2, 3], [5, 6, 7]) == [
        Outcome([5], 0, False),
        Outcome([2, 3, 6], 2, False),
        Outcome([2, 3, 4, 7], 3, False),
    ]
    assert batch.tokens.tolist() == [5, 6, 7]
    assert batch.lengths.tolist() == [21, 24, 26]
    assert batch.remaining.tolist() == [9, 7, 6]
    assert batch.active.all()


def test_without_drafts_one_token_is_committed() -> None:
    batch = running([10, 1, 10])
    assert commit(batch, None, [0, 0, 0], [5, 6, EOS]) == [
        Outcome([5], 0, False),
        Outcome([6], 0, True),
        Outcome([EOS], 0, True),
    ]
    assert batch.lengths.tolist() == [21, 22, 23]


def test_eos_inside_accepted_drafts_counts_what_was_committed() -> None:
    """vllm#56101: five drafts stand, the third is EOS: three are committed, three are accepted."""
    batch = running([10])
    drafts = [[2, 3, EOS, 4, 5]]
    assert commit(batch, drafts, [5], [6]) == [Outcome([2, 3, EOS], 3, True)]
    assert batch.tokens.tolist() == [EOS]
    assert batch.lengths.tolist() == [23]
    assert batch.remaining.tolist() == [7]
    assert not batch.active.any()


@pytest.mark.parametrize("accepted", range(6))
@pytest.mark.parametrize("place", range(6))
def test_eos_at_every_place(place: int, accepted: int) -> None:
    """`place` 5 is the token after all drafts; a draft that did not stand ends nothing."""
    drafts, following = [2, 3, 4, 5, 6], 7
    if place < 5:
        drafts[place] = EOS
    elif accepted == 5:
        following = EOS
    sequence = [*drafts[:accepted], following]
    ends = EOS in sequence
    tokens = sequence[: sequence.index(EOS) + 1] if ends else sequence
    batch = running([10])
    (found,) = commit(batch, [drafts], [accepted], [following])
    assert found == Outcome(tokens, min(accepted, len(tokens)), ends)
    assert bool(batch.active[0]) != ends


@pytest.mark.parametrize("accepted", range(4))
def test_eos_as_the_following_token(accepted: int) -> None:
    batch = running([10])
    (found,) = commit(batch, [[2, 3, 4]], [accepted], [EOS])
    assert found == Outcome([*[2, 3, 4][:accepted], EOS], accepted, True)


def test_any_of_several_eos_ends_a_request() -> None:
    batch = running([10, 10, 10], eos=[8, 9])
    found = commit(batch, [[2, 9], [8, 9], [2, 3]], [2, 2, 2], [4, 4, 8])
    assert [row.tokens for row in found] == [[2, 9], [8], [2, 3, 8]]
    assert all(row.ended for row in found)


def test_without_eos_only_the_length_ends_a_request() -> None:
    batch = running([3, 4], eos=[])
    found = commit(batch, [[EOS, EOS], [EOS, EOS]], [2, 2], [EOS, EOS])
    assert found == [Outcome([EOS] * 3, 2, True), Outcome([EOS] * 3, 2, False)]


@pytest.mark.parametrize(
    ("remaining", "gamma", "expected"), [(1, 4, 0), (2, 4, 1), (4, 4, 3), (5, 4, 4), (9, 4, 4)]
)
def test_drafts_shrink_at_the_length_limit(remaining: int, gamma: int, expected: int) -> None:
    batch = running([remaining])
    assert batch.allowed(gamma).tolist() == [expected]
    (found,) = commit(batch, [[2, 3, 4, 5]], [expected], [6])
    assert found == Outcome([*[2, 3, 4, 5][:expected], 6], expected, remaining == expected + 1)
    assert batch.remaining.tolist() == [remaining - expected - 1]


def test_allowed_of_gamma_zero_and_of_empty_rows() -> None:
    batch = running([10, 10])
    assert batch.allowed(0).tolist() == [0, 0]
    batch.release(1)
    assert batch.allowed(4).tolist() == [4, 0]
    commit(batch, None, [0, 0], [EOS, 5])
    assert batch.allowed(4).tolist() == [0, 0]


def test_rows_without_a_request_are_untouched() -> None:
    batch = running([10, 10, 1])
    batch.release(1)
    commit(batch, [[2], [3], [4]], [0, 0, 0], [5, 5, 5])  # the last row ends here
    before = [x.clone() for x in (batch.tokens, batch.lengths, batch.remaining, batch.active)]
    found = commit(batch, [[2], [EOS], [4]], [1, 1, 1], [6, EOS, EOS])
    assert found == [Outcome([2, 6], 1, False), Outcome([], 0, False), Outcome([], 0, False)]
    after = (batch.tokens, batch.lengths, batch.remaining, batch.active)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[1:], new[1:])


def test_state_stays_in_the_same_memory() -> None:
    """A captured graph keeps the addresses of what it reads."""
    batch = running([10, 10])
    state = (batch.tokens, batch.lengths, batch.remaining, batch.active)
    addresses = [x.data_ptr() for x in state]
    commit(batch, [[2, 3], [2, EOS]], [2, 2], [4, 4])
    state = (batch.tokens, batch.lengths, batch.remaining, batch.active)
    assert [x.data_ptr() for x in state] == addresses


@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_commit_equals_a_plain_loop(data: st.DataObject) -> None:
    rows, gamma = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))
    token = st.sampled_from([2, 3, 4, 8, 9])
    remaining = data.draw(st.lists(st.integers(1, 7), min_size=rows, max_size=rows))
    alive = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    drafts = [[data.draw(token) for _ in range(gamma)] for _ in range(rows)]
    following = [data.draw(token) for _ in range(rows)]
    batch = running(remaining, eos=[8, 9])
    for row, lives in enumerate(alive):
        if not lives:
            batch.release(row)
    accepted = [data.draw(st.integers(0, limit)) for limit in batch.allowed(gamma).tolist()]
    found = commit(batch, drafts if gamma else None, accepted, following)
    for row in range(rows):
        tokens: list[int] = []
        if alive[row]:
            for candidate in [*drafts[row][: accepted[row]], following[row]]:
                tokens.append(candidate)
                if candidate in (8, 9):
                    break
        left = remaining[row] - len(tokens) if alive[row] else 0
        ended = alive[row] and (left == 0 or tokens[-1] in (8, 9))
        assert found[row] == Outcome(tokens, min(accepted[row], len(tokens)), ended)
        assert batch.lengths[row] == (20 + row + len(tokens) if alive[row] else 0)
        assert batch.remaining[row] == left
        assert batch.tokens[row] == (tokens[-1] if tokens else 1)
        assert bool(batch.active[row]) == (alive[row] and not ended)


def test_slots_follow_the_table() -> None:
    table = torch.tensor([[3, 1, 7], [2, 5, 0]])
    positions = torch.tensor([[0, 15, 16, 47], [0, 17, 31, 16]])
    assert slots_of(table, positions).tolist() == [[48, 63, 16, 127], [32, 81, 95, 80]]


def test_slots_past_the_reservation_are_nobodys() -> None:
    """Page 0, and past the table its last page: no index leaves the cache."""
    batch = Batch(2, 48, [], "cpu")
    batch.reserve(0, [4])
    batch.reserve(1, [1, 2, 3])
    positions = torch.tensor([[15, 16, 47, 1000], [15, 16, 47, 1000]])
    slots = slots_of(batch.block_table, positions)
    assert slots[0].tolist() == [79, 0, 15, 8]
    assert slots[1].tolist()[:3] == [31, 32, 63]
    assert 48 <= slots[1, 3] < 64


def test_slots_of_masked_positions_are_none() -> None:
    batch = running([10, 10])
    positions = torch.tensor([[0, 16, 500], [0, 16, 500]])
    valid = torch.tensor([[True, False, False], [False, True, False]])
    assert batch.slots(positions, valid).tolist() == [[16, -1, -1], [-1, 9 * 16, -1]]


@pytest.mark.parametrize(("max_len", "pages"), [(1, 1), (16, 1), (17, 2), (100, 7)])
def test_the_table_holds_the_longest_request(max_len: int, pages: int) -> None:
    assert Batch(3, max_len, [], "cpu").block_table.shape == (3, pages)


def test_a_row_is_taken_and_released_without_a_trace() -> None:
    batch = Batch(2, 48, [EOS], "cpu")
    assert not batch.active.any()
    batch.reserve(1, [5, 6, 7])
    batch.admit(1, request=3, length=30, token=4, remaining=10)
    assert batch.block_table.tolist() == [[0, 0, 0], [5, 6, 7]]
    row = [x[1].item() for x in (batch.request, batch.lengths, batch.tokens, batch.remaining)]
    assert row == [3, 30, 4, 10]
    assert batch.active.tolist() == [False, True]
    batch.release(1)
    assert batch.block_table.sum() == 0
    assert batch.lengths.tolist() == batch.remaining.tolist() == [0, 0]
    assert not batch.active.any()
    batch.reserve(1, [2, 3])
    batch.reserve(1, [4])
    assert batch.block_table.tolist() == [[0, 0, 0], [4, 0, 0]]


class _Copies(TorchDispatchMode):
    """Copies from the host: on a GPU each of them waits for what was launched before."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def test_a_row_is_emptied_without_waiting_for_the_device() -> None:
    """The next iteration runs already, and its time would be the emptied row's step's."""
    batch = Batch(2, 48, [EOS], "cpu")
    with _Copies() as copies:
        batch.release(1)
    assert copies.count == 0
    with copies:
        batch.active[1] = False
    assert copies.count == 1
