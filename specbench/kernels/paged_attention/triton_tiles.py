"""The loop over key tiles: loads through the block table, softmax, products, and the scores."""

import triton
import triton.language as tl

from specbench.kernels.paged_attention.triton_rows import EXACT, LOGIT, NORMED

# log2 of the largest factor of a weight: the sum of 128 such is finite
MOST = tl.constexpr(100.0)


@triton.jit
def load_pages(
    table_ptr,
    tile,
    last,
    length,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Page numbers, int32 `[N]`, of a tile's entries; none for the tile at `last`."""
    n = tl.arange(0, BLOCK_N)
    if BLOCK_N % PAGE_SIZE == 0:
        at = table_ptr + tile * (BLOCK_N // PAGE_SIZE) + n // PAGE_SIZE
    else:
        at = table_ptr + (tile * BLOCK_N + n) // PAGE_SIZE
    there = tile < last
    if MASKED:
        there = there & (tile * BLOCK_N + n < length)
    return tl.load(at, mask=there, other=0).to(tl.int32)


@triton.jit
def load_tile(at, d, inside, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr):
    """Keys or values `[N, D]`; zeros where there is none, since 0 times NaN is NaN."""
    PADDED: tl.constexpr = d.shape[0] != HEAD_DIM
    if MASKED and PADDED:
        return tl.load(at, mask=inside[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    elif MASKED:
        return tl.load(at, mask=inside[:, None], other=0.0)
    elif PADDED:
        return tl.load(at, mask=(d < HEAD_DIM)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def probed(k, probe, norm, scale2, COLLECT: tl.constexpr, TURNED: tl.constexpr):
    """Scores `[N]` of a tile of keys from a product of its own with the rows of `probe`.

    TURNED has keys as rows: a warp-group product, and few values of a key in other threads.
    """
    if TURNED:
        votes = tl.dot(k, tl.trans(probe), input_precision="ieee")
        if COLLECT == NORMED:
            votes = tl.exp2(votes * scale2 - norm[None, :])
        return tl.sum(votes, 1)
    else:
        votes = tl.dot(probe, tl.trans(k), input_precision="ieee")
        if COLLECT == NORMED:
            votes = tl.exp2(votes * scale2 - norm[:, None])
        return tl.sum(votes, 0)


@triton.jit
def first_rows(x, ROWS: tl.constexpr):
    """The first `ROWS` rows of `x`, `[M, N]`, both powers of two: registers, if not of a warp."""
    if x.shape[0] > ROWS:
        halves = tl.reshape(x, [2, x.shape[0] // 2, x.shape[1]])
        first, _ = tl.split(tl.permute(halves, (1, 2, 0)))
        return first_rows(first, ROWS)
    else:
        return x


@triton.jit
def summed(weights, factor):
    """Scores `[N]` from weights `[M, N]`, each times its row's factor, of 64 rows and more.

    These belong to different warps, and a key's in one of them to eight threads: the sum is a
    product with ones, keys as its rows. A thread first adds its two of a key, eight rows apart,
    so that half as much goes through shared memory, in 16 bits.
    """
    M: tl.constexpr = weights.shape[0]
    N: tl.constexpr = weights.shape[1]
    pairs = tl.reshape(weights * factor[:, None], [M // 16, 2, 8, N])
    votes = tl.reshape(tl.sum(pairs, 1), [M // 2, N]).to(tl.bfloat16)
    # the fewest columns of a product, an eighth each
    ones = tl.full([M // 2, 8], 0.125, tl.float32).to(tl.bfloat16)
    return tl.sum(tl.dot(tl.trans(votes), ones), 1)


@triton.jit
def store_held(scores_ptr, held, tile, first, ranked, STORE: tl.constexpr):
    """Scores `[HOLD, N]` of tiles up to `tile`, of which those before `first` are another's."""
    HOLD: tl.constexpr = held.shape[0]
    BLOCK_N: tl.constexpr = held.shape[1]
    begin = -HOLD & tile
    t = begin + tl.arange(0, HOLD)
    n = t[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    # without a mask a store takes 16 bytes
    if (first <= begin) & (tile == begin + HOLD - 1) & ((tile + 1) * BLOCK_N <= ranked):
        tl.store(scores_ptr + n, held, cache_modifier=STORE)
    else:
        there = (n < ranked) & ((t >= first) & (t <= tile))[:, None]
        tl.store(scores_ptr + n, held, mask=there, cache_modifier=STORE)


@triton.jit
def attend_tiles(
    acc,
    total,
    top,
    q,
    row,
    probe,
    norm,
    kept,
    first,
    last,
    length,
    rows,
    ranked,
    scale2,
    d,
    k_ptr,
    v_ptr,
    table_ptr,
    tree_ptr,
    scores_ptr,
    weights_ptr,
    peaks_ptr,
    tree_stride,
    weights_stride,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLLECT: tl.constexpr,
    PROBED: tl.constexpr,
    TURNED: tl.constexpr,
    FRONT: tl.constexpr,
    HOLD: tl.constexpr,
    STORE: tl.constexpr,
    VALUES: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take key tiles `first` to `last` into the running softmax of a tile of query rows.

    Tiles that all rows see entirely need no mask, and are pipelined; the few others are not.
    Strides of the caches are compile-time constants, which halves the work on addresses.
    """
    offset = tl.arange(0, BLOCK_N)
    turn = tl.arange(0, HOLD)
    held = tl.zeros([HOLD, BLOCK_N], tl.float32)
    page = load_pages(table_ptr, first, last, length, PAGE_SIZE, BLOCK_N, MASKED)
    for tile in tl.range(first, last, num_stages=1 if MASKED else None):
        n = tile * BLOCK_N + offset
        inside = n < length
        # where tiles begin with a page this is the same in all, and leaves the loop
        place = ((offset if BLOCK_N % PAGE_SIZE == 0 else n) % PAGE_SIZE).to(tl.int64)
        k_at = (k_ptr + place * K_STRIDE[1])[:, None] + (d * K_STRIDE[3])[None, :]
        v_at = (v_ptr + place * V_STRIDE[1])[:, None] + (d * V_STRIDE[3])[None, :]
        k_at += (page.to(tl.int64) * K_STRIDE[0])[:, None]
        v_at += (page.to(tl.int64) * V_STRIDE[0])[:, None]
        # for the next tile: a load that waits for one of its own iteration halves the pipeline
        page = load_pages(table_ptr, tile + 1, last, length, PAGE_SIZE, BLOCK_N, MASKED)
        k = load_tile(k_at, d, inside, HEAD_DIM, MASKED)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee")
        if PROBED:
            vote = probed(k, probe, norm, scale2, COLLECT, TURNED)
        if MASKED:
            if COLUMNS == 0:
                visible = n[None, :] <= (length - rows + row)[:, None]
            else:
                column = n - (length - COLUMNS)
                edge = tl.load(
                    tree_ptr + row[:, None] * tree_stride[1] + column[None, :] * tree_stride[2],
                    mask=(row < rows)[:, None] & (inside & (column >= 0))[None, :],
                    other=0,
                )
                visible = inside[None, :] & ((column < 0)[None, :] | (edge != 0))
            logits = tl.where(visible, logits, -float("inf"))
        peak = tl.maximum(top, tl.max(logits, 1) * scale2)
        weights = tl.exp2(logits * scale2 - peak[:, None])
        fade = tl.exp2(top - peak)
        top = peak
        if BLOCK_M < 64:
            # warps share a row there: its sum is left to the end
            total = total * fade[:, None] + weights
        else:
            total = total * fade + tl.sum(weights, 1)
        if COLLECT == EXACT:
            # whole tiles, so that a store takes 16 bytes
            there = (kept >= 0) & (tile * BLOCK_N < ranked)
            at = kept.to(tl.int64)[:, None] * weights_stride[2] + n[None, :]
            tl.store(
                weights_ptr + at, weights.to(weights_ptr.dtype.element_ty), mask=there[:, None]
            )
            tl.store(peaks_ptr + tile * SLOTS + kept, peak, mask=there)
        if VALUES:
            v = load_tile(v_at, d, inside, HEAD_DIM, MASKED)
            acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        # after the products, which need not wait for them
        if COLLECT == NORMED and not PROBED:
            factor = tl.exp2(tl.minimum(peak - norm, MOST))
            if BLOCK_M >= 64 and k.dtype.primitive_bitwidth == 16:
                vote = summed(weights, factor)
            else:
                voters = weights
                factor = factor[:, None]
                if FRONT > 0:
                    voters = first_rows(weights, FRONT)
                    factor = first_rows(factor, FRONT)
                vote = tl.sum(voters * factor, 0)
        if COLLECT >= LOGIT:
            if HOLD == 1:
                tl.store(scores_ptr + n, vote, mask=n < ranked, cache_modifier=STORE)
            else:
                held = tl.where(turn[:, None] == ((HOLD - 1) & tile), vote[None, :], held)
                # not behind the loop, for which each thread would hold them twice
                if (((HOLD - 1) & tile) == HOLD - 1) | (tile == last - 1):
                    store_held(scores_ptr, held, tile, first, ranked, STORE)
    return acc, total, top
