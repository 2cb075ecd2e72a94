"""The kernel of ring attention: one level's queries of a request over what they see."""

import triton
import triton.language as tl

from specbench.kernels.launch import release_next, wait_for_previous
from specbench.kernels.paged_attention.triton_split import LOWEST, finished


@triton.jit(
    do_not_specialize=["depth", "nodes", "drafts", "mark_request", "mark_node", "mark_draft"]
)
def attend_ring(
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
