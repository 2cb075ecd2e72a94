"""The kernels that methods' drafts call compile for an H200, and spill no registers."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ptx import before_wait, loops_before_wait

ROOT = Path(__file__).parents[2]
NAMES = {"_page_scores", "_sparse_attention", "_row_weights", "_keep_rows"}
# Qwen2.5-0.5B and Qwen3-8B
MODELS = ((14, 2, 64), (32, 8, 128))
H200_MULTIPROCESSORS = 132
# heads, KV heads, their width, requests, entries of a list
DRAFT_STEPS = (
    (14, 2, 64, 16, 1000),
    (14, 2, 64, 4, 5000),
    (14, 2, 64, 64, 1000),
    (32, 8, 128, 4, 5000),
)


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def calls(heads: int, kv_heads: int, dim: int) -> None:
    """Every launch, with and without what is optional."""
    from specbench.kernels.page_bounds.triton import page_scores
    from specbench.kernels.sparse_attention.triton import sparse_attention
    from specbench.kernels.tree_attention.triton import row_weights

    q, bounds = half(2, 1, heads, dim), half(9, kv_heads, dim)
    table, lens = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    page_scores(q, bounds, bounds, table, lens)
    cache = half(9, 16, kv_heads, dim)
    listed = torch.zeros(2, kv_heads, 8, dtype=torch.int32)
    for unit in (1, 16):
        sparse_attention(q, cache, cache, listed, table, 0.1, unit)
        ahead = half(4096, 64)
        sparse_attention(q, cache, cache, listed, table, 0.1, unit, settled=True, ahead=ahead)
        sums = torch.empty(2, heads)
        sparse_attention(q, cache, cache, listed, table, 0.1, unit, lse=sums)
    # lists of several tiles
    long = torch.zeros(2, kv_heads, 300, dtype=torch.int32)
    # as the engine has them, key and value of an entry side by side
    paired = half(9, 16, kv_heads, 2 * dim).split(dim, -1)
    for settled in (False, True):
        sparse_attention(q, cache, cache, long, table, 0.1, settled=settled)
        sparse_attention(q, *paired, long, table, 0.1, settled=settled)
    rows = 51
    sums, weights = torch.empty(2, rows, heads), torch.empty(2, rows, 80)
    for mask in (None, torch.zeros(2, rows, rows, dtype=torch.bool)):
        row_weights(half(2, rows, heads, dim), cache, table, lens, lens, mask, 0.1, weights, sums)
    if dim == 64:  # the others differ in sizes alone
        calls_inside_vllm(heads, kv_heads, dim)


def calls_inside_vllm(heads: int, kv_heads: int, dim: int) -> None:
    """The plug-in's, over both layouts of vLLM's cache."""
    from specbench.integrations.vllm.layout import split_cache
    from specbench.kernels.sparse_attention.triton import sparse_attention
    from specbench.kernels.verified_rows.triton import keep_rows

    q, pool, gamma = half(2, 1, heads, dim), half(5, 16, kv_heads, dim), 8
    lens = torch.zeros(2, dtype=torch.int64)
    listed = torch.zeros(2, kv_heads, 8, dtype=torch.int32)
    tail = torch.zeros(2, 2 * gamma, dtype=torch.int64)
    votes = half(2, 2, heads, dim)
    packed = half(9, 16, kv_heads, 2 * dim).transpose(1, 2)
    split = half(9, 2, 16, kv_heads, dim)
    # as the packed cache is on a GPU: its halves are told apart by the device
    layouts = packed.transpose(1, 2).split(dim, -1), split_cache(split, kv_heads, dim)
    for keys, values in layouts:
        sparse_attention(q, keys, values, listed, tail, 0.1, tail_caches=(pool, pool), counts=lens)
    qkv = half(20, heads + 2 * kv_heads, dim)
    starts = torch.zeros(3, dtype=torch.int32)
    keep_rows(*qkv.split([heads, kv_heads, kv_heads], 1), starts, votes, pool[:2], pool[:2])


def draft_steps() -> list[dict[str, int | float]]:
    """Programs a multiprocessor of settled lists, and how many fit, as an H200 has them."""
    from specbench.kernels.sparse_attention import workspace
    from specbench.kernels.sparse_attention.triton import sparse_attention
    from tests.support.sm90 import compile_only

    workspace._INTERPRETED_SMS = H200_MULTIPROCESSORS
    found: list[dict[str, int | float]] = []
    for heads, kv_heads, dim, requests, width in DRAFT_STEPS:
        paired = half(9, 16, kv_heads, 2 * dim).split(dim, -1)
        listed = torch.zeros(requests, kv_heads, width, dtype=torch.int32)
        tail = torch.zeros(requests, 17, dtype=torch.int32)
        ahead = half(4096, 64)
        shapes = requests, heads, kv_heads, dim
        space = workspace.SparseAttentionWorkspace(*shapes, torch.bfloat16, "cpu")
        launch, splits = space.cut(*shapes, width + 17, True)
        for lse in (None, torch.empty(requests, heads)):
            call = partial(sparse_attention, half(requests, 1, heads, dim), *paired, listed, tail)
            options = {"workspace": space, "lse": lse, "settled": True, "ahead": ahead}
            (kernel,) = compile_only(partial(call, 0.1, **options))  # type: ignore[arg-type]
            registers = -(-kernel.registers // 8) * 8 * 32 * launch.warps
            fit = min(65_536 // registers, 227 * 1024 // (kernel.shared + 1024))
            wanted = requests * kv_heads * splits / H200_MULTIPROCESSORS
            found.append({"fit": fit, "wanted": wanted})
    return found


def main() -> None:
    """Compile, and write what the assembler says of each kernel and of each draft step."""
    from tests.support.sm90 import compile_only

    found = [asdict(kernel) for model in MODELS for kernel in compile_only(partial(calls, *model))]
    sys.stdout.write(json.dumps([found, draft_steps()]))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    """What `main` writes in a process that does not interpret: kernels, and draft steps."""
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    command = [sys.executable, "-m", "tests.kernels.test_drafting_compiles"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels, steps = json.loads(done.stdout)
    return kernels, steps


def test_the_programs_of_a_draft_step_are_in_memory_together(
    compiled: tuple[list[Any], list[Any]],
) -> None:
    """With the log-sum-exps it took 180 registers, of a list's programs a third came in a second
    wave, and a draft step of 16 x 20,000 was 0.03 ms longer than without.
    """
    _, steps = compiled
    assert len(steps) == 2 * len(DRAFT_STEPS)
    assert all(step["wanted"] <= step["fit"] for step in steps), steps
    # one for which it matters
    assert any(step["wanted"] > 2 for step in steps)


def test_they_compile_for_hopper(compiled: tuple[list[Any], list[Any]]) -> None:
    kernels, _ = compiled
    assert {kernel["name"] for kernel in kernels} == NAMES
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel["name"]
        assert kernel["shared"] <= 227 * 1024, kernel["name"]
    # of a long list too, only a program's first entries are fetched before its pipeline reads them
    sparse = [kernel["ptx"] for kernel in kernels if kernel["name"] == "_sparse_attention"]
    fetches = [ptx.partition("griddepcontrol.wait")[0].count("prefetch.L2") for ptx in sparse]
    assert 0 < max(fetches) <= 4
    assert not any(map(loops_before_wait, sparse))
    # slots stay out of the pipeline of keys and values, whose copies are of 16 bytes
    assert any("cp.async.cg.shared.global" in ptx for ptx in sparse)
    assert not any("cp.async.ca.shared.global" in ptx for ptx in sparse)
    # keys and values of a settled list are read before the wait, and nothing else happens there
    early = [before_wait(ptx) for ptx in sparse]
    assert any(names.count("ld.global.cg.v4.b32") >= 16 for names in early)
    assert all(name.startswith("ld.global") for names in early for name in names)


if __name__ == "__main__":
    main()
