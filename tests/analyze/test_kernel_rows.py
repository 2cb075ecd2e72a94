"""Attention against query rows: what is called is right, and what is timed is in order."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.analyze import kernel_calls
from specbench.analyze.kernel_calls import Inputs, Setup, check, make_cache, make_calls
from specbench.analyze.kernel_rows import COLUMNS, by_wall_clock, check_rows, time_rows
from specbench.bench.kernels.cases import Case
from specbench.errors import NumericalError, UsageError

CASE = Case("rows", "verify", heads=4, kv_heads=2, dim=16, batch=2, context=70, rows=3)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REFERENCE = Setup("reference", "cpu", torch.float32, "weight", "head")
TRITON = Setup("triton", DEVICE, torch.float32, "weight", "head")


def test_each_number_of_rows_is_timed_three_ways() -> None:
    table = time_rows(CASE, 3, REFERENCE, 5)
    assert all(tuple(row) == COLUMNS for row in table)
    ways = ["none", "first+last", "all"]
    expected = [(rows, way) for rows in (1, 2, 3) for way in ways]
    assert [(row["query_rows"], row["collecting"]) for row in table] == expected
    for row in table:
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["timings"] == 5
    assert [row["over_none"] for row in table if row["collecting"] == "none"] == [1, 1, 1]


def test_kernels_take_turns() -> None:
    order: list[str] = []

    def slow(name: str) -> Any:
        def call() -> None:
            order.append(name)
            torch.rand(300, 300) @ torch.rand(300, 300)

        return call

    times = by_wall_clock({"a": [slow("a")], "b": [slow("b"), slow("b")]}, 4)
    assert [len(values) for values in times.values()] == [4, 4]
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 5


@pytest.mark.parametrize("queries", ["first+last", "all"])
def test_the_reference_collects_from_the_rows_that_are_named(queries: Any) -> None:
    inputs = Inputs(CASE, REFERENCE, make_cache(CASE, REFERENCE, 0), 0)
    (call,) = make_calls([inputs], CASE, REFERENCE, REFERENCE.collect(queries))
    call()
    # 68 candidates of 70: the weights of each collected row sum to nearly one a query head
    rows = {"first+last": 2, "all": 3}[queries]
    total = inputs.scores[:, :, :68].sum(-1)
    assert (total < 2 * rows).all()
    assert (total > 1.8 * rows).all()


@pytest.mark.parametrize(
    ("score", "share", "one_pass"),
    [("weight", "head", False), ("weight", "head", True), ("logit", "layer", False)],
)
@pytest.mark.parametrize("rows", [1, 5])
def test_right_kernels_pass_the_check(score: Any, share: Any, one_pass: bool, rows: int) -> None:
    pytest.importorskip("triton")
    setup = replace(TRITON, score=score, share=share, one_pass=one_pass)
    assert check(replace(CASE, rows=rows), setup) < 1e-4


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    real = kernel_calls.make_calls

    def collects_too_little(inputs: Any, case: Any, setup: Any, collect: Any) -> Any:
        wrong = collect and replace(collect, queries="first+last")
        return real(inputs, case, setup, wrong)

    monkeypatch.setattr(kernel_calls, "make_calls", collects_too_little)
    with pytest.raises(NumericalError, match=r"rows: the kernel is off by .* is not timed"):
        check(CASE, TRITON)


def test_more_rows_than_tokens_are_refused() -> None:
    check_rows(CASE, 70)
    with pytest.raises(UsageError, match="--query-rows 71 exceed the 70 tokens"):
        check_rows(CASE, 71)


@pytest.mark.gpu
def test_timed_on_the_device() -> None:
    case = replace(CASE, heads=14, kv_heads=2, dim=64, context=2_000)
    table = time_rows(case, 2, Setup("triton", "cuda", torch.bfloat16, "weight", "head", True), 5)
    assert len(table) == 6
    assert all(0 < row["low_us"] <= row["median_us"] <= row["high_us"] for row in table)
