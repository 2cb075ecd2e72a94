"""Acceptance of sampled chains: which drafts stand, and the token after them, in two launches."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels.head.ends import draw_within, part_of_draw
from specbench.kernels.launch import dependent, release_next, wait_for_previous

# tokens at a time; a row has as many sums
CHUNK = 4096


def accept_sampled(
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None,
    allowed: Tensor,
    u_accept: Tensor,
    u_next: Tensor,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """As `engine.acceptance.accept_sampled`.

    Parameters
    ----------
    p : Tensor
        float32 `[R, gamma + 1, V]`, dense; NaN throughout a row that nothing can be drawn from.
    tokens : Tensor
        int64 `[R, gamma]`, gamma at least 1.
    q : Tensor or None
        float32 `[R, gamma, V]`, dense; None for drafts that were not drawn.
    allowed : Tensor
        int64 `[R]`.
    u_accept, u_next : Tensor
        float64 `[R, gamma]` and `[R, gamma + 1]`.
    chunk : int
        Tokens of a program, a power of two.

    Returns
    -------
    accepted, following : Tensor
        int64 `[R]`.
    """
    rows, chain, vocab = p.shape
    for x in (p, *(() if q is None else (q,)), u_accept, u_next):
        if not x.is_contiguous():
            raise ValueError("probabilities and numbers must be dense")
    chunks = triton.cdiv(vocab, chunk)
    sums = torch.empty((rows, 2, chunks), dtype=torch.float64, device=p.device)
    accepted, following = torch.empty((2, rows), dtype=torch.int64, device=p.device)
    options = dependent(True, p.device)
    if rows:
        common = p, q, tokens, tokens.stride(0), allowed
        size = {"GAMMA": chain - 1, "V": vocab, "CHUNK": chunk, "CHUNKS": chunks}
        padded = triton.next_power_of_2(chain)
        _weigh_next[(rows, chunks)](
            *common, u_accept, sums, accepted, PADDED=padded, **size, **options
        )
        _draw_next[(rows,)](
            *common,
            u_next,
            sums,
            accepted,
            following,
            PARTS=triton.next_power_of_2(chunks),
            num_warps=8,
            **size,
            **options,
        )
    return accepted, following


@triton.jit
def _weigh_next(
    p,
    q,
    tokens,
    tokens_stride,
    allowed,
    u,
    sums,
    accepted,
    GAMMA: tl.constexpr,
    PADDED: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Which drafts stand; what a chunk's tokens weigh as the next: by what is left, and by p."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    release_next(PDL)
    wait_for_previous(PDL)
    place = tl.arange(0, PADDED)
    drafted = place < GAMMA
    token = tl.load(tokens + row * tokens_stride + place, mask=drafted, other=0)
    judged = tl.load(p + (row * (GAMMA + 1) + place) * V + token, mask=drafted, other=0.0)
    if q is None:
        proposed = tl.where(drafted, 1.0, 0.0)
    else:
        proposed = tl.load(q + (row * GAMMA + place) * V + token, mask=drafted, other=0.0)
    number = tl.load(u + row * GAMMA + place, mask=drafted, other=1.0)
    counted = drafted & (place < tl.load(allowed + row))
    stands = counted & (number * proposed.to(tl.float64) < judged.to(tl.float64))
    count = tl.min(tl.where(stands, GAMMA, place), 0)
    mass, own = _next_weights(
        p, q, tokens, tokens_stride, allowed, row, count, part, GAMMA, V, CHUNK
    )
    tl.store(sums + row * 2 * CHUNKS + part, tl.sum(mass, 0).to(tl.float64))
    tl.store(sums + (row * 2 + 1) * CHUNKS + part, tl.sum(own, 0).to(tl.float64))
    tl.store(accepted + row, count.to(tl.int64), mask=part == 0)


@triton.jit
def _next_weights(
    p,
    q,
    tokens,
    tokens_stride,
    allowed,
    row,
    count,
    part,
    GAMMA: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """(p - q)+ of a chunk's tokens where a draft was rejected, else p; and p."""
    index = part * CHUNK + tl.arange(0, CHUNK)
    inside = index < V
    own = tl.load(p + (row * (GAMMA + 1) + count) * V + index, mask=inside, other=0.0)
    rejected = count < tl.load(allowed + row)
    # a full acceptance has no next draft
    step = tl.minimum(count, GAMMA - 1)
    if q is None:
        token = tl.load(tokens + row * tokens_stride + step)
        other = tl.where(index == token, 1.0, 0.0)
    else:
        other = tl.load(q + (row * GAMMA + step) * V + index, mask=inside & rejected, other=0.0)
    return tl.where(rejected, tl.maximum(own - other, 0.0), own), own


@triton.jit
def _draw_next(
    p,
    q,
    tokens,
    tokens_stride,
    allowed,
    u,
    sums,
    accepted,
    following,
    GAMMA: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The token in which the cumulative weight passes the row's number."""
    row = tl.program_id(0).to(tl.int64)
    release_next(PDL)
    wait_for_previous(PDL)
    chunk = tl.arange(0, PARTS)
    there = chunk < CHUNKS
    count = tl.load(accepted + row)
    mass = tl.load(sums + row * 2 * CHUNKS + chunk, mask=there, other=0.0)
    whole = tl.load(sums + (row * 2 + 1) * CHUNKS + chunk, mask=there, other=0.0)
    # rounding may leave nothing above q
    nothing = (tl.sum(mass, 0) > 0) == 0
    mass = tl.where(nothing, whole, mass)
    rest = tl.load(u + row * (GAMMA + 1) + count) * tl.sum(mass, 0)
    part, passed = part_of_draw(mass, chunk, rest)
    above, own = _next_weights(
        p, q, tokens, tokens_stride, allowed, row, count, part, GAMMA, V, CHUNK
    )
    weight = tl.where(nothing, own, above)
    index = part * CHUNK + tl.arange(0, CHUNK)
    chosen, last = -1, 0
    chosen, last, _ = draw_within(weight, index, passed, rest, chosen, last, V)
    tl.store(following + row, tl.where(chosen < 0, last, chosen).to(tl.int64))
