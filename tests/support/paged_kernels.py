"""Calls of Triton paged attention on poisoned memory, and what they are compared with."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.kernels.paged_attention import reference
from tests.support.device import DEVICE
from tests.support.paged import Paged, randn

kernels = pytest.importorskip("specbench.kernels.paged_attention.triton", exc_type=ImportError)
launching = pytest.importorskip("specbench.kernels.paged_attention.launch")
multiprocessors = pytest.importorskip("specbench.kernels.launch").multiprocessors

SCALE = 0.31
# 16-bit kernels round the weights too, before they meet the values
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def on_device(kv: Paged) -> Paged:
    """The same cache on the device of the tests."""
    if DEVICE == "cpu":
        return kv
    k, v, table = (x.to(DEVICE) for x in (kv.k_cache, kv.v_cache, kv.block_table))
    return Paged(k, v, table, kv.keys, kv.values)


def chunk(q_lens: tuple[int, ...], heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Queries `[R, Q, H, D]` with NaN in the padding."""
    q = randn(7, len(q_lens), max(q_lens), heads, dim, dtype=dtype)
    for row, count in enumerate(q_lens):
        q[row, count:] = torch.nan
    return q.to(DEVICE)


def lens(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def small(
    programs: int = 3,
    merge_bytes: int = 1 << 20,
    block_m: int = 32,
    block_n: int = 16,
    **more: Any,
) -> Any:
    """Small tiles and few programs, so that short contexts are split all the same."""
    processors = multiprocessors(DEVICE)
    each = max(1, programs // processors)
    return launching.Launch(
        block_m, block_n, stages=2, programs=each, min_tiles=1, merge_bytes=merge_bytes, **more
    )


def attention(q: Tensor, kv: Paged, max_len: int = 112, **kwargs: Any) -> Any:
    """A workspace for `q`, full of NaN."""
    made = kernels.PagedAttention(
        *q.shape[:3], kv.k_cache.shape[2], q.shape[3], max_len, q.dtype, DEVICE, **kwargs
    )
    for x in (made.partial, made.partial_lse, *made.collecting.tensors):
        x.fill_(torch.nan)
    return made


def attend(made: Any, q: Tensor, kv: Paged, *args: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, written over NaN."""
    out = torch.full_like(q, torch.nan)
    lse = torch.full(q.shape[:3], torch.nan, device=DEVICE)
    made(q, kv.k_cache, kv.v_cache, kv.block_table, *args, SCALE, out=out, lse=lse, **kwargs)
    return out, lse


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    near = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=near, atol=near)


def assert_is_reference(
    out: Tensor, lse: Tensor, q: Tensor, kv: Paged, kv_lens: Tensor, q_lens: Tensor
) -> None:
    """Equal to the reference on the same numbers in fp64, and so is the log-sum-exp."""
    k, v = kv.k_cache.double(), kv.v_cache.double()
    tail = kv.block_table, kv_lens, q_lens, SCALE
    assert_near(out, reference.paged_attention(q.double(), k, v, *tail), q.dtype)
    assert_near(lse, reference.log_sum_exp(q.double(), k, *tail), torch.float32)
