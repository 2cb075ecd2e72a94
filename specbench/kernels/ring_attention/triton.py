"""Attention of one level of drafts over a ring of tokens and the drafts so far, in Triton."""

import math

import torch
import triton
from torch import Tensor

from specbench.kernels.launch import dependent, multiprocessors, row_tile
from specbench.kernels.ring_attention.device import attend_ring

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
# of a level; drafts whose marks fit in a row's two words; the widest head
_MOST_NODES, _MOST_DRAFTS, _MOST_DIM = 64, 128, 256
# rows times bytes of a tile of keys: more of it, and registers go to the stack
_MOST_WORK = 2**18
# tiles of keys and values on their way or in work, 32 KB each at most
_STAGES = 4


def ring_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    depth: int,
    drafted: Tensor,
    window: int,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """`reference.ring_attention` in one launch.

    Nothing waits for the host and the grid depends on shapes alone, so that a call can be captured
    once it has been compiled by a first one.

    Parameters
    ----------
    q : Tensor
        `[R, n, H, D]` in bf16, fp16 or fp32, n up to 64 and D up to 256, dense in D.
    keys, values : Tensor
        `[R, S, Hkv, D]` of `q`'s type, S at least ``window + m``, dense in D: a committed token at
        position p lies at index ``p % window``, draft i at ``window + i``.
    last : Tensor
        int64 `[R]`, position of the last committed token; at least -1.
    depth : int
        How many tokens the queries stand after it; 0 for the last committed token itself.
    drafted : Tensor
        bool `[R, n, m]`, or `[1, n, m]` for all requests, m up to 128: which of the first m drafts
        each query sees. Of any strides.
    window : int
        Committed tokens that the ring holds, and positions that a query looks back on, its own
        included.
    scale : float
        Multiplies the logits before the softmax.
    out : Tensor, optional
        `[R, n, H, D]` of `q`'s type, dense in D; it may not share memory with the others.

    Returns
    -------
    Tensor
        `[R, n, H, D]`; zeros for a query that sees nothing.

    Raises
    ------
    ValueError
        Types, shapes or strides that the kernel cannot take.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _check(q, keys, values, last, drafted, window, out)
    requests, nodes, heads, dim = q.shape
    kv_heads, drafts = keys.shape[2], drafted.shape[2]
    if requests == 0:
        return out
    # fp32 products take their operands in registers
    most_rows = 16 if q.dtype == torch.float32 else 32
    share = _heads_together(requests, nodes, heads, kv_heads, most_rows, q.device)
    parts = triton.cdiv(heads // kv_heads, share)
    rows = min(row_tile(nodes * share), most_rows)
    dim_width = max(16, triton.next_power_of_2(dim))
    marks = drafted.expand(requests, -1, -1).view(torch.uint8)
    attend_ring[(requests * kv_heads * parts * triton.cdiv(nodes * share, rows),)](
        q,
        keys,
        values,
        last,
        marks if drafts else None,
        out,
        scale * math.log2(math.e),
        depth,
        nodes,
        drafts,
        last.stride(0),
        *marks.stride(),
        q.stride()[:3],
        keys.stride()[:3],
        values.stride()[:3],
        out.stride()[:3],
        WINDOW=window,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        PARTS=parts,
        SHARE=share,
        DIM=dim,
        WORDS=triton.cdiv(drafts, 64),
        ROWS=rows,
        DIM_WIDTH=dim_width,
        TILE=min(64, _MOST_WORK // (rows * dim_width * q.element_size())),
        STAGES=_STAGES,
        num_warps=4,
        **dependent(True, q.device),
    )
    return out


def _heads_together(
    requests: int, nodes: int, heads: int, kv_heads: int, most_rows: int, device: torch.device
) -> int:
    """Query heads of a program, which reads a KV head's entries once for all of them.

    As many as one tile of rows holds, while each multiprocessor has a program.
    """
    group, share = heads // kv_heads, 1
    while share < group and 2 * share * nodes <= most_rows:
        if requests * kv_heads * triton.cdiv(group, 2 * share) < multiprocessors(device):
            break
        share *= 2
    return share


def _check(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    drafted: Tensor,
    window: int,
    out: Tensor,
) -> None:
    requests, nodes, heads, dim = q.shape
    size, kv_heads = keys.shape[1:3]
    if q.dtype not in _TYPES or not q.dtype == keys.dtype == values.dtype == out.dtype:
        raise ValueError(
            f"queries, keys, values and output are {q.dtype}, {keys.dtype}, {values.dtype} and "
            f"{out.dtype}; all must be bf16, fp16 or fp32 alike"
        )
    if not 1 <= nodes <= _MOST_NODES or not 1 <= dim <= _MOST_DIM or heads % kv_heads:
        raise ValueError(
            f"queries of shape {tuple(q.shape)}: expected [R, n, H, D] with n up to {_MOST_NODES}, "
            f"H a multiple of {kv_heads} KV heads and D up to {_MOST_DIM}"
        )
    if keys.shape != values.shape or keys.shape != (requests, size, kv_heads, dim):
        raise ValueError(
            f"keys and values of shapes {tuple(keys.shape)} and {tuple(values.shape)} for queries "
            f"of shape {tuple(q.shape)}"
        )
    if last.dtype != torch.int64 or last.shape != (requests,):
        raise ValueError(f"last is {last.dtype} {tuple(last.shape)}, expected int64 [{requests}]")
    if drafted.dtype != torch.bool or drafted.shape[:-1] not in ((requests, nodes), (1, nodes)):
        raise ValueError(
            f"drafted is {drafted.dtype} {tuple(drafted.shape)}, expected bool [{requests} or 1, "
            f"{nodes}, m]"
        )
    drafts = drafted.shape[2]
    if drafts > _MOST_DRAFTS or not 1 <= window <= size - drafts:
        raise ValueError(
            f"{size} entries for a window of {window} and {drafts} drafts, which may be up to "
            f"{_MOST_DRAFTS}"
        )
    if out.shape != q.shape:
        raise ValueError(f"output of shape {tuple(out.shape)}, expected {tuple(q.shape)}")
    if dim > 1 and any(x.stride(3) != 1 for x in (q, keys, values, out)):
        raise ValueError("queries, keys, values and output must be dense in their last axis")
