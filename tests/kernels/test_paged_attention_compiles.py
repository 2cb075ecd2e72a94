"""The kernels of paged attention compile for an H200, on any Linux machine."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]


def printed(call: str, cache: Path) -> Any:
    """What a call returns in a process of its own: this one may have Triton's interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.support.hopper import *; print({call})"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return ast.literal_eval(done.stdout)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Shared memory of the kernels, and sums of a merge that threads could disagree on."""
    return printed("(compile_all(), contracted_merges())", tmp_path_factory.mktemp("cache"))


def test_kernels_compile_for_hopper(compiled: Any) -> None:
    shared, _ = compiled
    assert set(shared) == {
        "attend_kernel",
        "merge_kernel",
        "sum_heads_kernel",
        "weigh_kernel",
        "write_kernel",
    }
    assert max(shared.values()) <= 227 * 1024


def test_threads_that_hold_a_merged_sum_agree_to_the_last_bit(compiled: Any) -> None:
    _, contracted = compiled
    assert contracted == {"attend_kernel": 0, "merge_kernel": 0}


@pytest.mark.slow
def test_all_rows_vote_without_spills(tmp_path: Path) -> None:
    stacks = printed("stacks()", tmp_path)
    for name, (first_last, every) in stacks.items():
        # 128 keys beside 64 rows leave no registers for what a job begins with
        assert every == 0 or (name == "14/2, long" and every <= first_last), name
