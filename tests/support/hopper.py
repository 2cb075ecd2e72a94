"""Compiles paged attention for an H200 on a machine without a GPU."""

from functools import partial
from typing import Any

import torch

from tests.support.ptx import before_wait, contracted
from tests.support.sm90 import compile_only


def compile_all() -> dict[str, int]:
    """Compile paged attention as supported models use it: the most shared memory of each kernel."""
    shared: dict[str, int] = {}
    for kernel in compile_only(calls):
        if kernel.name in ("attend_kernel", "merge_kernel"):
            # their lengths and KV may be of the kernel ahead
            assert not before_wait(kernel.ptx), kernel.name
        shared[kernel.name] = max(kernel.shared, shared.get(kernel.name, 0))
    return shared


def contracted_merges() -> dict[str, int]:
    """Products that a merge adds unrounded across threads, by kernel: within a pass, and apart."""
    from specbench.kernels.paged_attention.launch import Launch

    found = {}
    for merge_bytes in (0, 1 << 20):
        how = Launch(64, 64, merge_bytes=merge_bytes)
        for kernel in compile_only(partial(launch, (1, 9, 14, 64), 2, torch.bfloat16, how=how)):
            if kernel.name == "merge_kernel" or merge_bytes:
                found[kernel.name] = contracted(kernel.ptx)
    return found


def stacks() -> dict[str, tuple[int, int]]:
    """Bytes on the stack of passes that collect, by the first and last row and by all rows."""
    from specbench.kernels.paged_attention.launch import default_launch
    from specbench.kernels.paged_attention.reference import Collect

    found = {}
    for name, shape, kv_heads, keys in (
        ("14/2, short", (4, 9, 14, 64), 2, 0),
        ("14/2, long", (4, 9, 14, 64), 2, 1 << 20),
        ("32/8", (4, 7, 32, 128), 8, 1 << 20),
    ):
        packed = shape[1] * shape[2] // kv_heads
        bf16, each = torch.bfloat16, []
        for collect in (Collect(), Collect(queries="all")):
            every = collect.queries == "all"
            how = default_launch(shape[3], packed, bf16, True, keys, every)
            types: dict[str, Any] = {"scores": bf16, "index": torch.int32}
            call = partial(launch, shape, kv_heads, bf16, collect, True, how=how, **types)
            each.append(max(kernel.stack for kernel in compile_only(call)))
        found[name] = each[0], each[1]
    return found


def calls() -> None:
    """Every launch, of each way to collect and to mask."""
    from specbench.kernels.paged_attention.launch import Launch
    from specbench.kernels.paged_attention.reference import Collect
    from specbench.kernels.paged_attention.triton import write_kv

    bf16, fp16 = torch.bfloat16, torch.float16
    launch((4, 7, 32, 128), 8, bf16, Collect())
    launch((4, 7, 32, 128), 8, bf16, Collect(share="layer"), one_pass=True)
    launch((64, 9, 14, 64), 2, bf16, Collect("logit"))
    launch((1, 9, 14, 64), 2, fp16, columns=512)
    launch((4, 51, 32, 128), 8, bf16, columns=51)
    launch((2, 1, 6, 80), 2, fp16, how=Launch(16, 64, partials="discard"))
    launch((1, 9, 14, 64), 2, bf16, how=Launch(64, 64, merge_bytes=1 << 20, partials="discard"))
    launch(
        (4, 7, 32, 128),
        8,
        bf16,
        Collect(),
        one_pass=True,
        how=Launch(32, 32, narrow=True, partials="discard"),
    )
    # more rows than a tile of them holds
    launch((4, 25, 14, 64), 2, bf16, Collect(queries="all"), one_pass=True)
    launch((2, 1, 6, 64), 2, torch.float32)
    write_kv(torch.empty(9, 16, 8, 128), torch.empty(4, 7, 8, 128), torch.zeros(4, 7).long())


def launch(
    shape: tuple[int, int, int, int],
    kv_heads: int,
    dtype: torch.dtype,
    collect: Any = None,
    one_pass: bool = False,
    columns: int = 0,
    how: Any = None,
    scores: torch.dtype = torch.float32,
    index: torch.dtype = torch.int64,
) -> None:
    """One call with queries of `shape`, over a cache of few pages."""
    from specbench.kernels.paged_attention.triton import PagedAttention

    rows, queries, heads, head_dim = shape
    made = PagedAttention(
        *shape[:3], kv_heads, head_dim, 4096, dtype, "cpu", collect, one_pass, how
    )
    cache = torch.empty(9, 16, kv_heads, head_dim, dtype=dtype)
    table, lens = torch.zeros(rows, 256).to(index), torch.zeros(rows).long()
    mask = torch.zeros(rows, queries, columns).bool() if columns else None
    extra: dict[str, Any] = {}
    if collect is not None:
        sets = kv_heads if collect.share == "head" else 1
        extra = {"ranked": lens, "scores": torch.empty(rows, sets, 4096, dtype=scores)}
    if one_pass:
        extra["norm"] = torch.empty(rows, made.collecting.rows, heads)
    q = torch.empty(shape, dtype=dtype)
    made(q, cache, cache, table, lens, lens, 1.0, tree_mask=mask, **extra)
