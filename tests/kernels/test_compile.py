"""The kernels of a decode step compile for an H200, without a device, and spill no registers."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.ptx import before_wait

ROOT = Path(__file__).parents[2]
# Qwen2.5-0.5B
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB = 896, 14, 2, 64, 4864, 151_936
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
H200_MULTIPROCESSORS = 132
NAMES = {
    "_add_rms_norm",
    "_rope_write_kv",
    "_project_rope_write_kv",
    "project_pairs",
    "_linear",
    "_gate_up",
    "_silu_mul",
    "_head_argmax",
    "survey_groups",
    "choose_tokens",
    "spread_weights",
    "_weigh_next",
    "_draw_next",
    "_uniform",
    "_draft_steps",
    "_sums_of_voters",
    "_make_chunk",
    "_finish_greedy",
    "specbench_mark",
    "_cross_entropy",
}
# launched when the kernel ahead of them has ended
INDEPENDENT = {"_uniform", "specbench_mark", "_cross_entropy"}
# read weights before they wait, and what their caller says is settled; the others nothing
EARLY_READERS = {
    "_add_rms_norm",
    "_rope_write_kv",
    "_project_rope_write_kv",
    "project_pairs",
    "_linear",
    "_gate_up",
}
# let the next kernel in behind their wait: what was written before them is settled for that one
CLOSED = {"_project_rope_write_kv", "project_pairs", "_linear", "_gate_up", "_head_argmax"}


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def step(rows: int) -> None:
    """Every launch of a step of `rows` requests, dependent launch switched on."""
    from specbench.engine.batch import Batch
    from specbench.engine.random import Purpose
    from specbench.engine.sampling import Sampling
    from specbench.kernels.cross_entropy.triton import cross_entropy
    from specbench.kernels.head import accept, sample, uniform
    from specbench.kernels.head import triton as head
    from specbench.kernels.iteration import triton as iteration
    from specbench.kernels.iteration import voters
    from specbench.kernels.linear import plan
    from specbench.kernels.linear import triton as linear
    from specbench.kernels.mark.triton import mark
    from specbench.kernels.mlp import triton as mlp
    from specbench.kernels.norm import triton as norm
    from specbench.kernels.qkv import project
    from specbench.kernels.qkv import triton as qkv
    from specbench.methods.base import Draft

    def dependent(launch: plan.LinearLaunch) -> plan.LinearLaunch:
        return replace(launch, pdl=True)

    sms = H200_MULTIPROCESSORS
    x, weight, index = half(rows, HIDDEN), half(HIDDEN), torch.zeros(rows, dtype=torch.int64)
    table = torch.empty(100, DIM)
    place = table, table, index, index, *(half(9, 16, KV_HEADS, DIM) for _ in range(2)), 1e-6
    norm.embed_prenorm(index, half(VOCAB, HIDDEN), weight)
    norm.add_rms_norm(x, half(rows, HIDDEN), weight, 1e-6, norm.NormLaunch(4, True))
    qkv.rope_write_kv(half(rows, WIDTH), half(WIDTH), None, *place, qkv.RopeLaunch(1, 1, True))
    launch = dependent(project.choose(rows, HEADS + 2 * KV_HEADS, DIM, HIDDEN, sms))
    begun = norm.prenorm(x, weight, launch=norm.NormLaunch(4, True))
    project.project_rope_write_kv(
        begun, half(WIDTH, HIDDEN), half(WIDTH), None, *place, launch=launch, ahead=x, settled=True
    )
    by_heads = project.by_heads(rows, HEADS + 2 * KV_HEADS, DIM, HIDDEN, sms)
    project.project_rope_write_kv(
        begun, half(WIDTH, HIDDEN), None, half(WIDTH // DIM, DIM), *place, launch=by_heads, ahead=x
    )
    launch = dependent(plan.choose(rows, HIDDEN, HIDDEN, sms))
    linear.linear_prenorm(
        *(half(rows, HIDDEN), half(HIDDEN, HIDDEN)),
        norm=weight,
        residual=half(rows, HIDDEN),
        launch=launch,
        ahead=x,
    )
    launch = dependent(plan.choose(rows, HIDDEN, INNER, sms))
    residual = half(rows, HIDDEN)
    begun = linear.linear_prenorm(
        *(half(rows, INNER), half(HIDDEN, INNER)),
        norm=weight,
        residual=residual,
        launch=launch,
        ahead=half(WIDTH, HIDDEN),
    )
    launch = replace(dependent(mlp.choose(rows, INNER, sms)), early=True)
    mlp.gate_up_small(begun, half(2 * INNER, HIDDEN), eps=1e-6, launch=launch, ahead=x)
    mlp.silu_mul(half(rows, 2 * INNER), mlp.SiluLaunch(pdl=True))
    head.head_argmax(begun, half(VOCAB, HIDDEN), eps=1e-6)
    u = uniform.uniform(2**64 - 1, index, index, 0, Purpose.DRAFT)
    batch = Batch(rows, 64, [3, 7], "cpu")
    drafted = Draft(index[:, None].repeat(1, 6))
    for draft in (None, drafted):
        chunk = iteration.make_chunk(batch, draft, 6, 64)
        iteration.finish_greedy(batch, chunk, chunk.tokens, chunk.tokens > 0)
    iteration.draft_steps(batch, 6, index[:, None].repeat(1, 13), 64)
    sums = torch.empty(24, rows, 7, HEADS)
    voters.sums_of_voters(batch, "all", sums[:, :, :6].contiguous(), sums)
    mark(index)
    cross_entropy(half(rows, VOCAB), index, True)
    launch = sample.SampleLaunch(pdl=True)
    for kept in ((0.9, 20), (1.0, 20), (0.9, 0), (1.0, 0)):
        sample.sample(half(rows, VOCAB), Sampling(0.8, *kept), u, launch)
    p, q = torch.empty(rows, 7, VOCAB), torch.empty(rows, 6, VOCAB)
    numbers = u[:, None].repeat(1, 6), u[:, None].repeat(1, 7)
    for drawn_from in (q, None):
        accept.accept_sampled(p, drafted.tokens, drawn_from, index, *numbers)


def main() -> None:
    """Compile, and write what the assembler says of each kernel."""
    from tests.support.sm90 import compile_only

    for rows in (1, 64):
        kernels = compile_only(partial(step, rows))
        sys.stdout.write(json.dumps([asdict(kernel) for kernel in kernels]) + "\n")


def test_a_step_compiles_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.kernels.test_compile"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        kernels = json.loads(line)
        assert {kernel["name"] for kernel in kernels} == NAMES
        for kernel in kernels:
            assert kernel["stack"] == 0, kernel["name"]
            assert kernel["shared"] <= 227 * 1024, kernel["name"]
            if kernel["name"] not in INDEPENDENT:
                done_early = {name.split(".")[0] for name in before_wait(kernel["ptx"])}
                allowed = {"ld"} if kernel["name"] in EARLY_READERS else set()
                allowed |= set() if kernel["name"] in CLOSED else {"griddepcontrol"}
                assert done_early <= allowed, kernel["name"]
            if kernel["name"] in {"_linear", "_gate_up", "_project_rope_write_kv"}:
                assert "cp.async.bulk.prefetch.L2.global" in kernel["ptx"], kernel["name"]
            early, _, late = kernel["ptx"].partition("griddepcontrol.wait")
            if kernel["name"] == "_gate_up":
                # launched so that the next kernel is let in before any sum
                assert late.index("griddepcontrol.launch") < late.index("mma")
            if kernel["name"] in {"_linear", "_gate_up", "_head_argmax", "project_pairs"}:
                # loads on their way while others are worked on, or weights before the wait
                streamed = "cp.async.cg.shared.global" in kernel["ptx"]
                assert streamed or early.count("ld.global.v4") >= 4, kernel["name"]
            if kernel["name"] == "project_pairs":
                # bias, positions, slots and the rotation
                assert early.count("ld.global") >= 8
                # nothing is read behind the products
                assert "ld.global" not in kernel["ptx"][kernel["ptx"].rindex("mma.sync") :]
                assert "atom." not in kernel["ptx"]


if __name__ == "__main__":
    main()
