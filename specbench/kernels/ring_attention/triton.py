"""Attention of one level of drafts over a ring of tokens and the drafts so far, in Triton."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.launch import (
    dependent,
    multiprocessors,
    release_next,
    row_tile,
    wait_for_previous,
)
from specbench.kernels.paged_attention.triton_split import LOWEST, finished

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
    _ring_attention[(requests * kv_heads * parts * triton.cdiv(nodes * share, rows),)](
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


@triton.jit(
    do_not_specialize=["depth", "nodes", "drafts", "mark_request", "mark_node", "mark_draft"]
)
def _ring_attention(
    q,
    keys,
    values,
    last,
    marks,
    out,
    scale,
    depth,
    nodes,
    drafts,
    last_stride,
    mark_request,
    mark_node,
    mark_draft,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of rows of one request: its nodes, each for up to `SHARE` query heads of a KV head.

    The ring's tiles come first, then the drafts'. Which drafts a row sees are bits of one or two
    words, read once: in the loop only keys and values are loaded, all of them through the pipeline.
    """
    row_tiles = tl.cdiv(nodes * SHARE, ROWS)
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    job = tl.program_id(0) // row_tiles
    part = job % PARTS
    kv_head = (job // PARTS % KV_HEADS).to(tl.int64)
    request = (job // (PARTS * KV_HEADS)).to(tl.int64)
    offset = tl.arange(0, TILE)
    dim = tl.arange(0, DIM_WIDTH)
    node = (row // SHARE).to(tl.int64)
    member = part * SHARE + row % SHARE
    head = kv_head * GROUP + member
    asks = (node < nodes) & (member < GROUP)
    inside = asks[:, None] & (dim < DIM)[None, :]
    at = request * q_stride[0] + node * q_stride[1] + head * q_stride[2]
    out_at = request * out_stride[0] + node * out_stride[1] + head * out_stride[2]
    k_at = keys + request * k_stride[0] + kv_head * k_stride[2]
    k_at = k_at + (offset.to(tl.int64) * k_stride[1])[:, None] + dim[None, :]
    v_at = values + request * v_stride[0] + kv_head * v_stride[2]
    v_at = v_at + (offset.to(tl.int64) * v_stride[1])[:, None] + dim[None, :]

    wait_for_previous(PDL)
    newest = tl.load(last + request * last_stride)
    query = tl.load(q + at[:, None] + dim[None, :], mask=inside, other=0.0)
    low = tl.zeros([ROWS], tl.int64)
    high = low
    if WORDS > 0:
        own = marks + request * mark_request + node * mark_node
        low = _marked(own, asks, 0, drafts, mark_draft)
    if WORDS > 1:
        high = _marked(own, asks, 64, drafts, mark_draft)
    # what no row sees is not read
    low_any = tl.reduce_or(low, 0)
    high_any = tl.reduce_or(high, 0)
    # the index of the last committed token, and how many indices hold one
    newest_index = (newest % WINDOW).to(tl.int32)
    held = tl.minimum(newest, WINDOW - 1).to(tl.int32) + 1
    ring_tiles = tl.cdiv(held, TILE)

    acc = tl.zeros([ROWS, DIM_WIDTH], tl.float32)
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS, TILE], tl.float32)
    for tile in tl.range(0, ring_tiles + tl.cdiv(drafts, TILE), num_stages=STAGES):
        in_ring = tile < ring_tiles
        entry = tile * TILE + offset
        age = newest_index - entry
        age = tl.where(age < 0, age + WINDOW, age)
        there = (entry < held) & (age < WINDOW - depth)
        begin = tile * TILE
        if WORDS > 0:
            column = (tile - ring_tiles) * TILE
            begin = tl.where(in_ring, begin, WINDOW + column)
            # of a ring's tile too within a word: a shift beyond has no meaning
            bit = (column & 63) + offset
            word_any = tl.where(column < 64, low_any, high_any)
            there = tl.where(in_ring, there, (word_any >> bit) & 1 != 0)
        readable = there[:, None] & (dim < DIM)[None, :]
        k = tl.load(k_at + begin.to(tl.int64) * k_stride[1], mask=readable, other=0.0)
        logits = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if WORDS > 0:
            # of the ring all rows see the same
            word = tl.where(in_ring, -1, tl.where(column < 64, low, high))
            seen = there[None, :] & ((word[:, None] >> bit[None, :]) & 1 != 0)
        else:
            seen = there[None, :]
        logits = tl.where(seen, logits, float("-inf"))
        peak = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp2(logits - peak[:, None]).to(k.dtype)
        fade = tl.exp2(top - peak)
        top = peak
        # of the rounded weights, so that those sum to one; over the threads of a row at the end
        total = total * fade[:, None] + weights.to(tl.float32)
        v = tl.load(v_at + begin.to(tl.int64) * v_stride[1], mask=readable, other=0.0)
        acc = tl.dot(weights, v, acc * fade[:, None], input_precision="ieee")

    release_next(PDL)
    result, _ = finished(acc, tl.sum(total, 1), top)
    result_at = out + out_at[:, None] + dim[None, :]
    tl.store(result_at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _marked(own, asks, first, drafts, mark_draft):
    """Which of the 64 drafts from `first` on each row sees, as bits, int64 `[ROWS]`."""
    bit = tl.arange(0, 64)
    column = (first + bit).to(tl.int64)
    mark = tl.load(
        own[:, None] + (column * mark_draft)[None, :],
        mask=asks[:, None] & (column < drafts)[None, :],
        other=0,
    )
    return tl.sum((mark != 0).to(tl.int64) << bit.to(tl.int64)[None, :], 1)
