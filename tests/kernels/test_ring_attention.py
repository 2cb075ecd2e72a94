"""Attention over a ring: both versions against dense attention by positions, in float64."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.ring_attention import reference
from tests.support.device import DEVICE
from tests.support.paged import randn
from tests.support.ptx import before_wait, loops_before_wait

pytest.importorskip("triton")

from specbench.kernels.ring_attention import triton

ROOT = Path(__file__).parents[2]
SCALE = 0.3
VERSIONS = {"reference": reference.ring_attention, "triton": triton.ring_attention}
# the result's rounding, and in half types the weights'
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-5, 1e-5),
    torch.float16: (2**-10, 2**-10),
    torch.bfloat16: (2**-7, 2**-7),
}
Version = Callable[..., Tensor]


@dataclass(frozen=True)
class Level:
    """A level's queries over a ring, NaN wherever no query looks, and what dense attention gives.

    Attributes
    ----------
    arguments : tuple
        Of `ring_attention`; its tensors are strided.
    expected : Tensor
        float64 `[R, n, H, D]`.
    """

    arguments: tuple[Any, ...]
    expected: Tensor

    def holds(self, version: Version, **options: Any) -> Tensor:
        """The version's result, after comparing it."""
        q = self.arguments[0]
        found = version(*self.arguments, **options)
        assert found.dtype == q.dtype
        relative, absolute = TOLERANCE[q.dtype]
        torch.testing.assert_close(
            found.double().cpu(), self.expected, rtol=relative, atol=absolute
        )
        return found


def level(
    lasts: tuple[int, ...],
    depth: int,
    drafted: Tensor,
    window: int = 16,
    heads: tuple[int, int] = (4, 2),
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    spare: int = 3,
) -> Level:
    """A level whose requests end at positions `lasts`, of nodes that see `drafted` `[R, n, m]`."""
    requests, (_, nodes, drafts), (count, kv_heads) = len(lasts), drafted.shape, heads
    # queries beside keys and values, a key beside its value
    packed = randn(seed, requests, nodes, count + 2, dim, dtype=dtype)
    ring = torch.full((requests, window + drafts + spare, kv_heads, 2, dim), torch.nan, dtype=dtype)
    expected = torch.zeros(requests, nodes, count, dim, dtype=torch.float64)
    for r, (last, marks) in enumerate(zip(lasts, drafted.expand(requests, -1, -1), strict=True)):
        # by the text's positions: the query's own is last + depth
        oldest = max(last + depth - window + 1, 0)
        known = list(range(oldest, last + 1))
        for position in known:
            ring[r, position % window] = randn(seed + 1 + position, kv_heads, 2, dim)
        for draft in range(drafts):
            if marks[:, draft].any():
                ring[r, window + draft] = randn(seed + 5000 + draft, kv_heads, 2, dim)
        for node in range(nodes):
            index = [position % window for position in known]
            index += [window + i for i in range(drafts) if marks[node, i]]
            if index:
                entries = ring[r, index].double().repeat_interleave(count // kv_heads, 1)
                query = packed[r, node, :count].double()
                logits = torch.einsum("hd,jhd->hj", query, entries[:, :, 0]) * SCALE
                weighed = torch.einsum("hj,jhd->hd", logits.softmax(-1), entries[:, :, 1])
                expected[r, node] = weighed
    packed, ring = packed.to(DEVICE), ring.to(DEVICE)
    # columns of a wider matrix, from which a level's rows are taken
    wide = torch.ones(drafted.shape[0], drafts + 2, nodes + 1, dtype=torch.bool, device=DEVICE)
    seen = wide.transpose(1, 2)[:, 1:, :drafts]
    seen.copy_(drafted)
    last = torch.tensor(lasts, device=DEVICE)
    q, (keys, values) = packed[:, :, :count], ring.unbind(3)
    return Level((q, keys, values, last, depth, seen, window, SCALE), expected)


def paths(seed: int, requests: int, nodes: int, drafts: int) -> Tensor:
    """Ancestors in random trees of the last `nodes` of `drafts` nodes, bool `[R, n, m]`."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.eye(drafts, dtype=torch.bool).expand(requests, -1, -1).clone()
    for request in mask:
        for node in range(1, drafts):
            parent = int(torch.randint(-1, node, (1,), generator=generator))
            if parent >= 0:
                request[node] |= request[parent]
    return mask[:, drafts - nodes :]


def none(requests: int = 1, nodes: int = 1) -> Tensor:
    return torch.zeros(requests, nodes, 0, dtype=torch.bool)


@st.composite
def levels(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> Level:
    """Any level: chains, trees and marks at random, rings at any stage, rows that see nothing."""
    requests, window = draw(st.integers(1, 3)), draw(st.sampled_from([16, 48, 70]))
    nodes, seed = draw(st.integers(1, 20)), draw(st.integers(0, 99))
    shape = draw(st.sampled_from([1, requests])), nodes, draw(st.sampled_from([0, 1, 20, 37, 90]))
    kind = draw(st.sampled_from(["marks", "paths", "chain"]))
    if kind == "paths" and shape[2] >= nodes:
        drafted = paths(seed, *shape)
    elif kind == "chain":
        drafted = torch.ones(shape, dtype=torch.bool)
    else:
        drafted = randn(seed, *shape) > draw(st.sampled_from([0.0, 2.5]))
    return level(
        tuple(draw(st.integers(-1, 3 * window)) for _ in range(requests)),
        draw(st.integers(0, 5)),
        drafted,
        window,
        draw(st.sampled_from([(2, 2), (4, 2), (3, 1)])),
        draw(st.sampled_from([16, 64, 80])),
        draw(st.sampled_from(dtypes)),
        seed,
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(levels((torch.float64, torch.float32, torch.bfloat16)))
def test_the_reference_is_dense_attention_by_positions(any_level: Level) -> None:
    any_level.holds(reference.ring_attention)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(levels((torch.float32, torch.float16, torch.bfloat16)), st.sampled_from([1, 1000]))
def test_the_kernel_is_dense_attention_by_positions(any_level: Level, processors: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # several heads of a program, or one
        patch.setattr(triton, "multiprocessors", lambda _: processors)
        any_level.holds(triton.ring_attention)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("last", [0, 14, 15, 16, 31, 40])
def test_a_ring_that_fills_and_wraps_around(version: Version, last: int, depth: int) -> None:
    drafted = torch.ones(1, 1, depth, dtype=torch.bool)
    level((last,), depth, drafted).holds(version)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_a_query_that_sees_nothing_gives_zeros(version: Version) -> None:
    drafted = torch.zeros(2, 3, 5, dtype=torch.bool)
    drafted[0, 1, 2] = True
    found = level((-1, 3), 1, drafted).holds(version)
    assert (found[0, [0, 2]] == 0).all()
    assert (level((-1, -1), 0, none(2)).holds(version) == 0).all()


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_one_mask_serves_all_requests(version: Version) -> None:
    mask = paths(1, 1, 4, 9)
    one = level((40, 3, 11), 2, mask).holds(version)
    each = level((40, 3, 11), 2, mask.expand(3, -1, -1)).holds(version)
    assert torch.equal(one, each)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_a_row_without_a_request_spoils_no_other(version: Version) -> None:
    """Whatever position it ends at: also one whose next is no int64."""
    made = level((5, 37, 5), 3, paths(2, 3, 4, 9))
    q, keys, values, _, *rest = made.arguments
    last = torch.tensor([2**63 - 1, 37, -1], device=DEVICE)
    found = version(q, keys, values, last, *rest)[1].double().cpu()
    torch.testing.assert_close(found, made.expected[1], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_it_writes_where_it_is_told(version: Version) -> None:
    given_level = level((20, 7), 2, paths(3, 2, 4, 6))
    wide = torch.full((4, 2, 6, 20), torch.nan, device=DEVICE)
    out = wide.transpose(0, 1)[:, :, 1:5, :16]
    assert given_level.holds(version, out=out) is out
    wide[:, :, 1:5, :16] = torch.nan
    assert wide.isnan().all()


@pytest.mark.parametrize(
    ("nodes", "drafts", "dtype"),
    [(64, 127, torch.bfloat16), (33, 128, torch.float32), (16, 64, torch.bfloat16)],
)
def test_the_widest_levels(nodes: int, drafts: int, dtype: torch.dtype) -> None:
    mask = paths(4, 1, nodes, drafts)
    level((150,), 4, mask, window=130, heads=(2, 1), dtype=dtype).holds(triton.ring_attention)


def test_it_counts_queries_to_processors() -> None:
    """A chain's level of many requests shares out its heads, a request alone does not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "multiprocessors", lambda _: 132)
        device = torch.device(DEVICE)
        shares = [triton._heads_together(r, n, 14, 2, 32, device) for r, n in SHARED]
    assert shares == list(SHARED.values())


# requests and nodes: heads of a program
SHARED = {(1, 1): 1, (1, 16): 1, (16, 16): 1, (64, 16): 2, (64, 1): 4, (96, 1): 8, (64, 33): 1}


def test_no_requests_are_no_launch() -> None:
    q, ring = torch.zeros(0, 2, 4, 16, device=DEVICE), torch.zeros(0, 20, 2, 16, device=DEVICE)
    last = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    mask = torch.zeros(1, 2, 3, dtype=torch.bool, device=DEVICE)
    assert triton.ring_attention(q, ring, ring, last, 1, mask, 16, SCALE).shape == q.shape


REFUSED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "must be bf16, fp16 or fp32": lambda a: {"q": a["q"].double()},
    "values and output are .* alike": lambda a: {"values": a["values"].half()},
    "n up to 64": lambda a: {"q": a["q"][:, :1].expand(-1, 65, -1, -1)},
    "multiple of 2 KV heads": lambda a: {"q": a["q"][:, :, :3]},
    "keys and values of shapes": lambda a: {"values": a["values"][:, 1:]},
    "last is torch.int32": lambda a: {"last": a["last"].int()},
    r"last is torch.int64 \(1,\)": lambda a: {"last": a["last"][:1]},
    "drafted is torch.uint8": lambda a: {"drafted": a["drafted"].byte()},
    r"expected bool \[2 or 1, 4, m\]": lambda a: {"drafted": a["drafted"][:, 1:]},
    "24 entries for a window of 20 and 5": lambda _: {"window": 20},
    "a window of 0": lambda _: {"window": 0},
    "may be up to 128": lambda a: {"drafted": a["drafted"][:, :, :1].expand(-1, -1, 129)},
    "output of shape": lambda a: {"out": a["q"][:1]},
    "dense in their last axis": lambda a: {
        "q": a["q"].transpose(2, 3).contiguous().transpose(2, 3)
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_cannot_take(message: str) -> None:
    names = "q", "keys", "values", "last", "depth", "drafted", "window", "scale"
    made = level((9, 9), 1, paths(0, 2, 4, 5)).arguments
    arguments = dict(zip(names, made, strict=True))
    triton.ring_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        triton.ring_attention(**arguments | REFUSED[message](arguments))


# heads, KV heads, their width; requests, nodes, drafts; the type
COMPILED = (
    (14, 2, 64, 1, 1, 0, torch.bfloat16),
    (14, 2, 64, 1, 16, 52, torch.bfloat16),
    (32, 8, 128, 1, 16, 52, torch.bfloat16),
    (6, 2, 80, 64, 16, 127, torch.float16),
    (14, 2, 64, 1, 16, 52, torch.float32),
)


def main() -> None:
    """Compile, and write what the assembler says of each kernel."""
    from specbench.kernels.ring_attention import triton as kernels
    from tests.support.sm90 import compile_only

    kernels.multiprocessors = lambda _: 132  # type: ignore[assignment]
    found = []
    for heads, kv_heads, dim, requests, nodes, drafts, dtype in COMPILED:
        q = torch.empty(requests, nodes, heads, dim, dtype=dtype)
        ring = torch.empty(requests, 512 + drafts, kv_heads, dim, dtype=dtype)
        last = torch.zeros(requests, dtype=torch.int64)
        mask = torch.zeros(requests, nodes, drafts, dtype=torch.bool)
        arguments = q, ring, ring, last, 3, mask, 512, SCALE
        found += compile_only(lambda: kernels.ring_attention(*arguments))  # noqa: B023
    sys.stdout.write(json.dumps([asdict(kernel) for kernel in found]))


def test_it_compiles_for_hopper(tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.kernels.test_ring_attention"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    assert [kernel["name"] for kernel in kernels] == ["attend_ring"] * len(COMPILED)
    for kernel in kernels:
        assert kernel["stack"] == 0
        # two of a multiprocessor's 227 KB, in halves
        assert kernel["shared"] <= 113 * 1024
        assert before_wait(kernel["ptx"]) == []
        assert not loops_before_wait(kernel["ptx"])
        # keys and values come through the pipeline, 16 bytes at a time
        assert "cp.async.cg.shared.global" in kernel["ptx"]
        assert "cp.async.ca.shared.global" not in kernel["ptx"]
    # a level of one request, which has 14 programs
    assert kernels[1]["registers"] <= 128


if __name__ == "__main__":
    main()
