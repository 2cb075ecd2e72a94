"""What a query can find in each page at most, in one launch, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# pages of a program: with 128 channels in float32 both bounds take 64 registers a thread
_PAGES = 32


def page_scores(
    q: Tensor,
    page_min: Tensor,
    page_max: Tensor,
    block_table: Tensor,
    complete: Tensor | None = None,
) -> Tensor:
    """`reference.page_scores`, of complete pages only.

    Nothing waits for the host and the grid depends on shapes alone.

    Parameters
    ----------
    q : Tensor
        `[R, 1, H, D]`, dense in D.
    page_min, page_max : Tensor
        `[pages, Hkv, D]`, of equal strides and dense in D.
    block_table : Tensor
        int32 or int64 `[R, P]`, dense in P.
    complete : Tensor, optional
        Integers `[R]`: places at or past it are not scored, and hold anything.

    Returns
    -------
    Tensor
        float32 `[R, Hkv, P]`.

    Raises
    ------
    ValueError
        Shapes or strides that the kernel cannot take.
    """
    requests, _, heads, dim = q.shape
    kv_heads, pages = page_min.shape[1], block_table.shape[1]
    if q.shape[1] != 1 or heads % kv_heads or q.stride(3) != 1:
        raise ValueError(
            f"query of shape {tuple(q.shape)} and strides {q.stride()}: expected [R, 1, H, D], "
            f"dense in D, with H a multiple of {kv_heads} KV heads"
        )
    if page_min.stride() != page_max.stride() or page_min.stride(2) != 1:
        raise ValueError(
            f"bounds with {page_min.stride()} and {page_max.stride()}: expected equal strides, "
            "dense in D"
        )
    scores = torch.empty(requests, kv_heads, pages, dtype=torch.float32, device=q.device)
    _page_scores[(triton.cdiv(pages, _PAGES), kv_heads, requests)](
        q,
        page_min,
        page_max,
        block_table,
        complete,
        scores,
        pages,
        q.stride(0),
        q.stride(2),
        page_min.stride(0),
        page_min.stride(1),
        block_table.stride(0),
        GROUP=heads // kv_heads,
        DIM=dim,
        GROUP_WIDTH=triton.next_power_of_2(heads // kv_heads),
        DIM_WIDTH=triton.next_power_of_2(dim),
        PAGES=_PAGES,
    )
    return scores


@triton.jit(do_not_specialize=["pages"])
def _page_scores(
    q,
    page_min,
    page_max,
    block_table,
    complete,
    scores,
    pages,
    q_request,
    q_head,
    bound_page,
    bound_head,
    table_request,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    PAGES: tl.constexpr,
):
    """Some pages of one request for one KV head; those of no request cost nothing."""
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    held = pages
    if complete is not None:
        held = tl.minimum(tl.load(complete + request).to(tl.int32), pages)
    first = tl.program_id(0) * PAGES
    if first < held:
        member = tl.arange(0, GROUP_WIDTH)
        dim = tl.arange(0, DIM_WIDTH)
        place = first + tl.arange(0, PAGES)
        there = place < held
        page = tl.load(block_table + request * table_request + place, mask=there, other=0)
        query = tl.load(
            q + request * q_request + (head * GROUP + member[:, None]) * q_head + dim[None, :],
            mask=(member < GROUP)[:, None] & (dim < DIM)[None, :],
            other=0.0,
        ).to(tl.float32)
        # the larger product is with the upper bound where the query is positive
        high = tl.sum(tl.maximum(query, 0.0), 0) / GROUP
        low = tl.sum(tl.minimum(query, 0.0), 0) / GROUP
        at = page.to(tl.int64)[:, None] * bound_page + head * bound_head + dim[None, :]
        readable = there[:, None] & (dim < DIM)[None, :]
        upper = tl.load(page_max + at, mask=readable, other=0.0).to(tl.float32)
        lower = tl.load(page_min + at, mask=readable, other=0.0).to(tl.float32)
        score = tl.sum(upper * high[None, :] + lower * low[None, :], 1)
        tl.store(scores + (request * tl.num_programs(1) + head) * pages + place, score, mask=there)
