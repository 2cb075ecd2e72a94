"""Parts of a plan: together they are all of it, and each has the baselines of its datasets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.bench.shards import Shard, parse_shard, shard_cells
from specbench.errors import UsageError


@given(
    datasets=st.integers(1, 5),
    own=st.integers(1, 5),
    shared=st.integers(0, 2),
    count=st.integers(1, 25),
)
def test_the_parts_are_the_plan(datasets: int, own: int, shared: int, count: int) -> None:
    names = [f"d{i}" for i in range(datasets)]
    baselines = [f"base{i}" for i in range(shared)]
    arms = [*baselines, *(f"arm{i}" for i in range(own))]
    if count > datasets * own:
        with pytest.raises(UsageError, match="to share out"):
            shard_cells(names, arms, baselines, Shard(1, count))
        return
    parts = [shard_cells(names, arms, baselines, Shard(i + 1, count)) for i in range(count)]
    measured = [cell for part in parts for cell in part if cell[1] not in baselines]
    assert measured == [(d, a) for d in names for a in arms if a not in baselines]
    for part in parts:
        assert part
        assert len(set(part)) == len(part)
        for dataset, _ in part:
            assert {(dataset, base) for base in baselines} <= set(part)
    sizes = [sum(arm not in baselines for _, arm in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_plan_of_nothing_but_the_baseline_is_shared_out_too() -> None:
    parts = [shard_cells(["a", "b"], ["ar"], ["ar"], Shard(i, 2)) for i in (1, 2)]
    assert parts == [[("a", "ar")], [("b", "ar")]]


def test_arms_that_do_not_run_on_every_dataset_are_shared_out_where_they_do() -> None:
    only = [("a", "ar"), ("b", "ar"), ("a", "short"), ("b", "long")]
    arms = ["ar", "short", "long"]
    parts = [shard_cells(["a", "b"], arms, ["ar"], Shard(i, 2), only) for i in (1, 2)]
    assert parts == [[("a", "ar"), ("a", "short")], [("b", "ar"), ("b", "long")]]
    with pytest.raises(UsageError, match="2 cells to share out"):
        shard_cells(["a", "b"], arms, ["ar"], Shard(3, 3), only)


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)


def test_a_shard_names_its_folder() -> None:
    assert parse_shard("2/4").folder == "shard-2-of-4"
