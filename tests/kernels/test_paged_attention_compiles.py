"""The kernels of paged attention compile for an H200, on any Linux machine."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """In a process of its own, since this one may have Triton's interpreter in place."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", "from tests.support.hopper import *; print(compile_all())"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shared = ast.literal_eval(done.stdout)
    assert set(shared) == {
        "attend_kernel",
        "merge_kernel",
        "sum_heads_kernel",
        "weigh_kernel",
        "write_kernel",
    }
    assert max(shared.values()) <= 227 * 1024
