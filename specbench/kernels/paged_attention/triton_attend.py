"""The attention kernel: jobs of the batch, each with its part of the KV."""

import triton
import triton.language as tl

from specbench.kernels.launch import fetch_share, release_next, wait_for_previous
from specbench.kernels.paged_attention.triton_rows import (
    EXACT,
    LOGIT,
    NORMED,
    NOTHING,
    collected_first,
    collected_index,
    collected_row,
    load_rows,
    summed_query,
    write_rows,
)
from specbench.kernels.paged_attention.triton_split import (
    LOWEST,
    finished,
    job_at,
    merge_partials,
    share_of,
    tiles_of,
)
from specbench.kernels.paged_attention.triton_tiles import attend_tiles

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_job(
    r,
    h,
    plane,
    packed,
    first,
    last,
    length,
    rows,
    scale,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    tree_ptr,
    ranked_ptr,
    scores_ptr,
    norm_ptr,
    weights_ptr,
    peaks_ptr,
    q_stride,
    table_stride,
    tree_stride,
    scores_stride,
    norm_stride,
    weights_stride,
    peaks_stride,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLLECT: tl.constexpr,
    PROBED: tl.constexpr,
    TURNED: tl.constexpr,
    FRONT: tl.constexpr,
    HOLD: tl.constexpr,
    STORE: tl.constexpr,
    VALUES: tl.constexpr,
    WHICH: tl.constexpr,
    SLOTS: tl.constexpr,
    PADDED_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SPREAD: tl.constexpr,
):
    """Attention `[M, D]` of packed rows over key tiles `first` to `last`; log2-sum-exp `[M]`.

    SPREAD: of several tiles of rows each has scores of its own, in their `plane`. EDGE_N: keys of a
    masked tile that are taken at a time.
    """
    r = r.to(tl.int64)
    h = h.to(tl.int64)
    d = tl.arange(0, PADDED_D)
    row = packed // GROUP
    q_ptr += r * q_stride[0]
    table_ptr += r * table_stride[0]
    k_ptr += h * K_STRIDE[2]
    v_ptr += h * V_STRIDE[2]
    q = load_rows(q_ptr, packed, row < rows, h, q_stride, d, HEAD_DIM, GROUP)
    probe = q
    norm = row
    kept = row
    ranked = 0
    if COLLECT != NOTHING:
        ranked = tl.load(ranked_ptr + r).to(tl.int32)
    if COLLECT >= LOGIT:
        scores_ptr += r * scores_stride[0] + plane.to(tl.int64) * scores_stride[1]
        if not SPREAD:
            # of several tiles of rows the first collects, for all
            ranked = tl.where(tl.min(packed, 0) == 0, ranked, 0)
    if COLLECT == LOGIT:
        probe = summed_query(q_ptr, rows, h, q_stride, d, HEAD_DIM, GROUP, WHICH, SLOTS, BLOCK_C)
    if COLLECT == NORMED and PROBED:
        slot = tl.arange(0, BLOCK_C)
        head = slot % GROUP
        voter, counts = collected_row(slot // GROUP, rows, WHICH)
        counts = counts & (slot < SLOTS)
        probe = load_rows(q_ptr, voter * GROUP + head, counts, h, q_stride, d, HEAD_DIM, GROUP)
        at = (
            r * norm_stride[0]
            + slot // GROUP * norm_stride[1]
            + (h * GROUP + head) * norm_stride[2]
        )
        norm = tl.load(norm_ptr + at, mask=counts, other=float("inf")) * LOG2E
    if COLLECT == NORMED and not PROBED:
        c = collected_index(row, rows, WHICH)
        at = r * norm_stride[0] + c * norm_stride[1] + (h * GROUP + packed % GROUP) * norm_stride[2]
        # rows that do not vote have an infinite normaliser
        norm = tl.load(norm_ptr + at, mask=c >= 0, other=float("inf")) * LOG2E
    if COLLECT == EXACT:
        c = collected_index(row, rows, WHICH)
        kept = tl.where(c >= 0, c * GROUP + packed % GROUP, -1)
        weights_ptr += r * weights_stride[0] + h * weights_stride[1]
        peaks_ptr += r * peaks_stride[0] + h * peaks_stride[1]
    if COLUMNS == 0:
        seen_by_all = length - rows + 1
    else:
        seen_by_all = length - COLUMNS
        tree_ptr += r * tree_stride[0]
    bare = tl.maximum(seen_by_all, 0) // BLOCK_N
    EDGES: tl.constexpr = BLOCK_N // EDGE_N
    acc = tl.zeros([BLOCK_M, PADDED_D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    if BLOCK_M < 64:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    else:
        total = tl.zeros([BLOCK_M], tl.float32)
    for masked in tl.static_range(2):
        acc, total, top = attend_tiles(
            acc,
            total,
            top,
            q,
            row,
            probe,
            norm,
            kept,
            tl.maximum(first, bare) * EDGES if masked else first,
            tl.minimum(last * EDGES, tl.cdiv(length, EDGE_N)) if masked else tl.minimum(last, bare),
            length,
            rows,
            ranked,
            scale * LOG2E,
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
            K_STRIDE,
            V_STRIDE,
            HEAD_DIM,
            PAGE_SIZE,
            COLUMNS,
            COLLECT,
            PROBED,
            TURNED,
            FRONT,
            # few tiles are masked
            1 if masked else HOLD,
            STORE,
            VALUES,
            SLOTS,
            BLOCK_M,
            EDGE_N if masked else BLOCK_N,
            masked,
        )
    if BLOCK_M < 64:
        total = tl.sum(total, 1)
    return finished(acc, total, top)


@triton.jit
def attend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    kv_lens_ptr,
    q_lens_ptr,
    tree_ptr,
    ranked_ptr,
    scores_ptr,
    norm_ptr,
    weights_ptr,
    peaks_ptr,
    out_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    arrived_ptr,
    following,
    scale,
    requests,
    q_stride,
    table_stride,
    tree_stride,
    scores_stride,
    norm_stride,
    weights_stride,
    peaks_stride,
    out_stride,
    lse_stride,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
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
    WHICH: tl.constexpr,
    SLOTS: tl.constexpr,
    PADDED_R: tl.constexpr,
    PADDED_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MERGE_M: tl.constexpr,
    MERGE_S: tl.constexpr,
    DISCARD: tl.constexpr,
    EVICT: tl.constexpr,
    FUSED: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """An equal share of the batch's key tiles, job after job.

    A job that is all this program's is written out. Of one that it shares it leaves its part; the
    last of the job's programs to come (FUSED), or `merge_kernel`, puts the parts together.
    """
    wait_for_previous(PDL)
    ROW_TILES: tl.constexpr = (QUERIES * GROUP + BLOCK_M - 1) // BLOCK_M
    JOBS: tl.constexpr = KV_HEADS * ROW_TILES
    SPREAD: tl.constexpr = COLLECT == NORMED and ROW_TILES > 1
    tiles = tiles_of(kv_lens_ptr, q_lens_ptr, requests, PADDED_R, BLOCK_N)
    share = share_of(tiles, tl.num_programs(0), JOBS, MIN_TILES)
    program = tl.program_id(0)
    unit = program * share
    stop = tl.minimum(unit + share, tl.sum(tiles) * JOBS)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, PADDED_D)
    while unit < stop:
        r, job, count, begin = job_at(unit, tiles, JOBS, PADDED_R)
        h = job // ROW_TILES
        top_row = (job % ROW_TILES) * BLOCK_M
        rows = tl.load(q_lens_ptr + r).to(tl.int32)
        packed = collected_first(top_row + m, rows, GROUP, WHICH, FRONT)
        live = packed < QUERIES * GROUP
        length = tl.where(rows > 0, tl.load(kv_lens_ptr + r).to(tl.int32), 0)
        first = unit - begin
        last = tl.minimum(count, first + stop - unit)
        value, lse2 = attend_job(
            r,
            h,
            job if SPREAD else h,
            packed,
            first,
            # nothing to read for a tile of padding
            tl.where(top_row < rows * GROUP, last, first),
            length,
            rows,
            scale,
            q_ptr,
            k_ptr,
            v_ptr,
            table_ptr,
            tree_ptr,
            ranked_ptr,
            scores_ptr,
            norm_ptr,
            weights_ptr,
            peaks_ptr,
            q_stride,
            table_stride,
            tree_stride,
            scores_stride,
            norm_stride,
            weights_stride,
            peaks_stride,
            K_STRIDE,
            V_STRIDE,
            HEAD_DIM,
            PAGE_SIZE,
            GROUP,
            COLUMNS,
            COLLECT,
            PROBED,
            TURNED,
            FRONT,
            HOLD,
            STORE,
            VALUES,
            WHICH,
            SLOTS,
            PADDED_D,
            BLOCK_M,
            BLOCK_N,
            EDGE_N,
            BLOCK_C,
            SPREAD,
        )
        if unit + last - first == stop:
            fetch_share(following, PARTS)
            release_next(PDL)
        parts = (begin + count - 1) // share - begin // share + 1
        if parts == 1:
            write_rows(
                value,
                lse2,
                r,
                h,
                packed,
                live,
                rows,
                out_ptr,
                lse_ptr,
                norm_ptr,
                out_stride,
                lse_stride,
                norm_stride,
                d,
                HEAD_DIM,
                GROUP,
                WHICH,
            )
        else:
            slot = 2 * program + (unit != program * share).to(tl.int32)
            at = slot.to(tl.int64) * BLOCK_M + m
            tl.store(partial_lse_ptr + at, lse2, mask=live)
            tl.store(
                partial_ptr + at[:, None] * PADDED_D + d[None, :],
                value,
                mask=live[:, None],
                eviction_policy=EVICT,
            )
            if FUSED:
                # all threads have stored before one of them says so
                tl.debug_barrier()
                counter = arrived_ptr + r * JOBS + job
                if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
                    # for the next launch
                    tl.store(counter, 0)
                    few = tl.arange(0, MERGE_M)
                    few_packed = collected_first(top_row + few, rows, GROUP, WHICH, FRONT)
                    few_live = few_packed < QUERIES * GROUP
                    merged, merged_lse2 = merge_partials(
                        partial_ptr,
                        partial_lse_ptr,
                        begin,
                        share,
                        parts,
                        few,
                        few_live,
                        d,
                        BLOCK_M,
                        MERGE_S,
                        DISCARD,
                    )
                    write_rows(
                        merged,
                        merged_lse2,
                        r,
                        h,
                        few_packed,
                        few_live,
                        rows,
                        out_ptr,
                        lse_ptr,
                        norm_ptr,
                        out_stride,
                        lse_stride,
                        norm_stride,
                        d,
                        HEAD_DIM,
                        GROUP,
                        WHICH,
                    )
        unit += last - first
