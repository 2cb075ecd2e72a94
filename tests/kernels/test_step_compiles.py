"""The kernel of all layers compiles for an H200, without a device, and its programs fit on it."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
H200_MULTIPROCESSORS, REGISTERS, SHARED = 132, 2**16, 227 * 1024
# hidden, heads, KV heads, head's width, inner, of Qwen2.5-0.5B and 7B; rows; programs and warps
CASES = [
    ((896, 14, 2, 64, 4864), 1, None),
    ((896, 14, 2, 64, 4864), 16, None),
    ((896, 14, 2, 64, 4864), 16, (2, 4)),
    ((896, 14, 2, 64, 4864), 64, None),
    ((3584, 28, 4, 128, 18944), 16, None),
]


def step(sizes: tuple[int, ...], rows: int, programs: tuple[int, int] | None) -> None:
    """A launch of three layers whose lists have 1,000 entries."""
    from specbench.kernels.step import plan
    from specbench.kernels.step.triton import draft_layers
    from specbench.kernels.step.weights import StepWeights
    from specbench.kernels.step.workspace import StepWorkspace

    plan.multiprocessors = lambda _: H200_MULTIPROCESSORS  # type: ignore[assignment]
    launch = None
    if programs is not None:
        launch = plan.StepLaunch(*programs, 128, (32, 128, 3), (64, 64, 5))
    shape, dtype = plan.Shape(*sizes), torch.bfloat16
    addresses = torch.zeros(3, plan.COLUMNS, dtype=torch.int64)
    embed, norm = torch.empty(99, shape.hidden, dtype=dtype), torch.empty(shape.hidden, dtype=dtype)
    entries = torch.empty(3, 9, 16, shape.kv_heads, 2 * shape.dim, dtype=dtype)
    table, index = torch.empty(99, shape.dim), torch.zeros(rows, dtype=torch.int64)
    draft_layers(
        index,
        StepWeights(shape, addresses, embed, norm, True, 1e-6),
        *(table, table, index, index, *entries.split(shape.dim, -1)),
        torch.zeros(3, rows, shape.kv_heads, 1000, dtype=torch.int32),
        torch.zeros(rows, 13, dtype=torch.int64),
        0.1,
        StepWorkspace(dtype, "cpu"),
        launch=launch,
    )


def main() -> None:
    """Compile, and write what the assembler says of each kernel."""
    from tests.support.sm90 import compile_only

    for case in CASES:
        (kernel,) = compile_only(partial(step, *case))
        sys.stdout.write(json.dumps(asdict(kernel)) + "\n")


@pytest.mark.slow
def test_a_step_compiles_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.kernels.test_step_compiles"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, rows, programs), kernel in zip(CASES, kernels, strict=True):
        assert kernel["stack"] <= (16 if rows > 32 else 0)
        each, warps = programs or (1, 8)
        assert each * warps * 32 * kernel["registers"] <= REGISTERS
        assert each * kernel["shared"] <= SHARED
        # a barrier before each phase of a layer, and weights that are fetched ahead of it
        assert kernel["ptx"].count("ld.acquire.gpu") == 5
        assert "cp.async.bulk.prefetch.L2.global" in kernel["ptx"]


if __name__ == "__main__":
    main()
