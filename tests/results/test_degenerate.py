"""Loops are flagged, healthy text is not."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.results.degenerate import MIN_TOKENS, is_degenerate


def healthy(count: int, seed: int = 0) -> list[int]:
    """Tokens as unlike each other as those of prose: common ones recur, phrases do not."""
    source = random.Random(seed)
    return [int(source.paretovariate(0.7)) for _ in range(count)]


@pytest.mark.parametrize("count", [32, 100, 512, 4096])
def test_varied_output_is_healthy(count: int) -> None:
    assert not is_degenerate(healthy(count))


@pytest.mark.parametrize("period", [1, 2, 7, 40, 100])
def test_an_end_that_repeats_is_a_loop(period: int) -> None:
    loop = healthy(period, seed=1) * (3 + 64 // period)
    assert is_degenerate(healthy(400) + loop)
    assert is_degenerate(healthy(400) + loop + [2]), "EOS after the loop"
    assert is_degenerate(healthy(400) + loop[: -(period // 2) or None]), "cut within a period"


def test_a_loop_with_a_counter_is_a_loop() -> None:
    lines = [[10_000 + i, 5, 6, 7, 8, 9, 11, 12, 13] for i in range(40)]
    assert is_degenerate([token for line in lines for token in line])


def test_a_long_paragraph_said_twice_is_a_loop() -> None:
    paragraph = healthy(150)
    assert is_degenerate(healthy(100, seed=3) + paragraph + paragraph)


def test_a_loop_that_ended_long_ago_counts_by_its_share() -> None:
    loop = healthy(6, seed=1) * 100
    assert not is_degenerate(healthy(2000) + loop[:100] + healthy(2000, seed=2))
    assert is_degenerate(healthy(500) + loop + healthy(500, seed=2))


@given(st.lists(st.integers(0, 3), max_size=MIN_TOKENS - 1))
def test_short_outputs_are_never_flagged(tokens: list[int]) -> None:
    assert not is_degenerate(tokens)


def test_text_is_taken_too() -> None:
    assert is_degenerate("It is a vital resource for human health.\n" * 12)
    assert is_degenerate(
        "".join(f"{i}. It is a vital resource for human health.\n" for i in range(30))
    )
    assert not is_degenerate("It is a vital resource for human health.")


@pytest.mark.parametrize("name", ["govreport", "longbench_v2_style"])
def test_real_documents_are_healthy(name: str, data_folder) -> None:
    lines = (data_folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        text = " ".join(value for value in json.loads(line).values() if isinstance(value, str))
        for start in range(0, min(len(text), 20_000) - 2_000, 2_000):
            assert not is_degenerate(text[start : start + 2_000])
