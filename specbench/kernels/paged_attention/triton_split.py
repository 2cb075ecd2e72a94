"""How a batch's KV is divided over programs, and how partial results are put together.

A job is what has a softmax of its own to run over a request's keys: a tile of packed query rows of
one KV head. The key tiles of all jobs are laid end to end, and each program takes an equal share.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from specbench.kernels.launch import release_next, wait_for_previous
from specbench.kernels.paged_attention.triton_rows import collected_first, write_rows

# below any logit, and finite: exp2(-inf - LOWEST) is 0 where exp2(-inf + inf) is NaN
LOWEST = tl.constexpr(-1e30)
_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def tiles_of(kv_lens_ptr, q_lens_ptr, requests, PADDED: tl.constexpr, BLOCK_N: tl.constexpr):
    """Key tiles of a job of each request, `[PADDED]`: one at least, to write its padding."""
    r = tl.arange(0, PADDED)
    real = r < requests
    used = real & (tl.load(q_lens_ptr + r, mask=real, other=0) > 0)
    length = tl.load(kv_lens_ptr + r, mask=used, other=0).to(tl.int32)
    return tl.where(real, tl.maximum(tl.cdiv(length, BLOCK_N), 1), 0)


@triton.jit
def share_of(tiles, programs, JOBS: tl.constexpr, MIN_TILES: tl.constexpr):
    """Key tiles that each program takes, of JOBS jobs a request."""
    return tl.maximum(tl.cdiv(tl.sum(tiles) * JOBS, programs), MIN_TILES)


@triton.jit
def place_of(r, tiles, JOBS: tl.constexpr, PADDED: tl.constexpr):
    """Key tiles of a job of request `r`, and where the request's first job begins."""
    each = tl.arange(0, PADDED)
    count = tl.sum(tl.where(each == r, tiles, 0))
    return count, tl.sum(tl.where(each < r, tiles, 0)) * JOBS


@triton.jit
def job_at(unit, tiles, JOBS: tl.constexpr, PADDED: tl.constexpr):
    """The request and its job that tile `unit` of all belongs to; the job's tiles and beginning."""
    r = tl.sum((tl.cumsum(tiles) * JOBS <= unit).to(tl.int32))
    count, start = place_of(r, tiles, JOBS, PADDED)
    job = (unit - start) // count
    return r, job, count, start + job * count


@triton.jit
def finished(acc, total, top):
    """Attention and its log2-sum-exp from the running sums; zeros and -inf of what saw nothing."""
    seen = total > 0
    some = tl.where(seen, total, 1.0)
    return acc / some[:, None], tl.where(seen, top + tl.log2(some), -float("inf"))


@triton.jit
def discard(pointers, there):
    """Drop the 128 bytes at each pointer from L2: nobody reads them before they are written again.

    They would be written to memory when others take their place.
    """
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred there;
        setp.ne.s32 there, $2, 0;
        @there discard.global.L2 [$1], 128;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r",
        [pointers, there.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def parts_at(first, begin, share, parts, m, live, BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr):
    """Where the rows `m` of BLOCK_S parts of a job lie, from its part `first` on, and which are.

    A program leaves its part of the first job that it works on in slot ``2 * program``, and of the
    last in the next. All programs of a job but its first begin with it.
    """
    part = first + tl.arange(0, BLOCK_S)
    cut = (begin % share != 0).to(tl.int32)
    slot = 2 * (begin // share + part) + tl.where(part == 0, cut, 0)
    at = slot.to(tl.int64)[:, None] * BLOCK_M + m[None, :]
    return at, (part < parts)[:, None] & live[None, :]


@triton.jit
def _rounded_product(a, b):
    """For sums across threads: all that hold one agree to the last bit.

    Contracted with what another thread has, a product would be rounded in one of them only
    (triton-lang/triton#7264).
    """
    if _COMPILED:
        return libdevice.mul_rn(a, b)
    else:
        return a * b


@triton.jit
def merge_partials(
    partial_ptr,
    partial_lse_ptr,
    begin,
    share,
    parts,
    m,
    live,
    d,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    DISCARD: tl.constexpr,
):
    """Attention `[len(m), D]` and log2-sum-exp of a job's `live` rows, from its `parts` parts."""
    top = tl.full([m.shape[0]], LOWEST, tl.float32)
    total = tl.zeros([m.shape[0]], tl.float32)
    acc = tl.zeros([m.shape[0], d.shape[0]], tl.float32)
    for first in tl.range(0, parts, BLOCK_S, num_stages=4):
        at, there = parts_at(first, begin, share, parts, m, live, BLOCK_M, BLOCK_S)
        # not through L1, which does not see what other processors wrote
        lse2 = tl.load(partial_lse_ptr + at, mask=there, other=-float("inf"), cache_modifier=".cg")
        value = tl.load(
            partial_ptr + at[:, :, None] * d.shape[0] + d[None, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        ).to(tl.float32)
        peak = tl.maximum(top, tl.max(lse2, 0))
        weight = tl.exp2(lse2 - peak[None, :])
        fade = tl.exp2(top - peak)
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(_rounded_product(value, weight[:, :, None]), 0)
        top = peak
    if DISCARD:
        # all threads have read before one of them drops anything
        tl.debug_barrier()
        LINE: tl.constexpr = 1024 // partial_ptr.dtype.element_ty.primitive_bitwidth
        line = tl.arange(0, d.shape[0] // LINE) * LINE
        for first in tl.range(0, parts, BLOCK_S, num_stages=1):
            at, there = parts_at(first, begin, share, parts, m, live, BLOCK_M, BLOCK_S)
            lines = partial_ptr + at[:, :, None] * d.shape[0] + line[None, None, :]
            discard(lines, there[:, :, None])
    return finished(acc, total, top)


@triton.jit
def merge_kernel(
    kv_lens_ptr,
    q_lens_ptr,
    out_ptr,
    lse_ptr,
    norm_ptr,
    partial_ptr,
    partial_lse_ptr,
    requests,
    programs,
    out_stride,
    lse_stride,
    norm_stride,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WHICH: tl.constexpr,
    FRONT: tl.constexpr,
    PADDED_R: tl.constexpr,
    PADDED_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MERGE_M: tl.constexpr,
    MERGE_S: tl.constexpr,
    DISCARD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Put the parts of MERGE_M rows of a job together; nothing to do where there is but one."""
    wait_for_previous(PDL)
    ROW_TILES: tl.constexpr = (QUERIES * GROUP + BLOCK_M - 1) // BLOCK_M
    JOBS: tl.constexpr = KV_HEADS * ROW_TILES
    tiles = tiles_of(kv_lens_ptr, q_lens_ptr, requests, PADDED_R, BLOCK_N)
    share = share_of(tiles, programs, JOBS, MIN_TILES)
    r = tl.program_id(1) // JOBS
    job = tl.program_id(1) % JOBS
    count, start = place_of(r, tiles, JOBS, PADDED_R)
    begin = start + job * count
    parts = (begin + count - 1) // share - begin // share + 1
    if parts > 1:
        m = tl.program_id(0) * MERGE_M + tl.arange(0, MERGE_M)
        rows = tl.load(q_lens_ptr + r).to(tl.int32)
        packed = (job % ROW_TILES) * BLOCK_M + m
        packed = collected_first(packed, rows, GROUP, WHICH, FRONT)
        live = (m < BLOCK_M) & (packed < QUERIES * GROUP)
        d = tl.arange(0, PADDED_D)
        value, lse2 = merge_partials(
            partial_ptr,
            partial_lse_ptr,
            begin,
            share,
            parts,
            m,
            live,
            d,
            BLOCK_M,
            MERGE_S,
            DISCARD,
        )
        release_next(PDL)
        write_rows(
            value,
            lse2,
            r,
            job // ROW_TILES,
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
