"""Compiles Triton kernels for an H200 on a machine without a GPU: launches only compile."""

from collections.abc import Callable
from typing import Any

import torch

from tests.support.ptx import before_wait


class Hopper:
    """Stands in for Triton's driver of one device."""

    @property
    def utils(self) -> "Hopper":
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 * 1024}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only() -> list[Any]:
    """From now on each launch in this process compiles; the list collects the results."""
    from triton.runtime import JITFunction, driver

    from specbench.kernels import launch

    driver.set_active(Hopper())
    launch.overlaps = lambda _: True  # type: ignore[assignment]
    compiled: list[Any] = []
    run: Callable[..., Any] = JITFunction.run

    def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    JITFunction.run = warm_up
    return compiled


def compile_all() -> dict[str, int]:
    """Compile paged attention as supported models use it: the most shared memory of each kernel."""
    compiled = compile_only()
    from specbench.kernels.paged_attention.launch import Launch
    from specbench.kernels.paged_attention.reference import Collect
    from specbench.kernels.paged_attention.triton import write_kv

    bf16, fp16 = torch.bfloat16, torch.float16
    launch((4, 7, 32, 128), 8, bf16, Collect())
    launch((4, 7, 32, 128), 8, bf16, Collect(share="layer"), one_pass=True)
    launch((64, 9, 14, 64), 2, bf16, Collect("logit"))
    launch((1, 9, 14, 64), 2, fp16, columns=512)
    launch((4, 51, 32, 128), 8, bf16, columns=51)
    launch((2, 1, 6, 80), 2, fp16, how=Launch(16, 64, merge_bytes=0))
    launch((2, 1, 6, 64), 2, torch.float32)
    write_kv(torch.empty(9, 16, 8, 128), torch.empty(4, 7, 8, 128), torch.zeros(4, 7).long())
    shared: dict[str, int] = {}
    for kernel in compiled:
        about = kernel.metadata
        if about.name in ("attend_kernel", "merge_kernel"):
            # their lengths and KV may be of the kernel ahead
            assert not before_wait(kernel.asm["ptx"]), about.name
        shared[about.name] = max(about.shared, shared.get(about.name, 0))
    return shared


def launch(
    shape: tuple[int, int, int, int],
    kv_heads: int,
    dtype: torch.dtype,
    collect: Any = None,
    one_pass: bool = False,
    columns: int = 0,
    how: Any = None,
) -> None:
    """One call with queries of `shape`, over a cache of few pages."""
    from specbench.kernels.paged_attention.triton import PagedAttention

    rows, queries, heads, head_dim = shape
    made = PagedAttention(
        *shape[:3], kv_heads, head_dim, 4096, dtype, "cpu", collect, one_pass, how
    )
    cache = torch.empty(9, 16, kv_heads, head_dim, dtype=dtype)
    table, lens = torch.zeros(rows, 256).long(), torch.zeros(rows).long()
    mask = torch.zeros(rows, queries, columns).bool() if columns else None
    extra: dict[str, Any] = {}
    if collect is not None:
        sets = kv_heads if collect.share == "head" else 1
        extra = {"ranked": lens, "scores": torch.empty(rows, sets, 4096)}
    if one_pass:
        extra["norm"] = torch.empty(rows, made.collecting.rows, heads)
    q = torch.empty(shape, dtype=dtype)
    made(q, cache, cache, table, lens, lens, 1.0, tree_mask=mask, **extra)
