"""Temperature, top-k, top-p and the draw in one launch without a sort, in Triton."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.sampling import Sampling
from specbench.kernels.head.search import (
    distances,
    find_peak,
    gather_near,
    kth_distance,
    lightest_weight,
    survey,
    weigh,
)
from specbench.kernels.launch import check_dtype, dependent, release_next, wait_for_previous


@dataclass(frozen=True)
class SampleLaunch:
    """How one program goes through its row.

    Attributes
    ----------
    block : int
        Tokens at a time, a power of two.
    list_block : int
        Candidates of the threshold search at a time, a power of two.
    num_warps : int
    pdl : bool
        Programmatic dependent launch.
    """

    block: int = 4096
    list_block: int = 1024
    num_warps: int = 16
    num_stages: int = 3
    pdl: bool = True


def probabilities(logits: Tensor, sampling: Sampling, launch: SampleLaunch | None = None) -> Tensor:
    """As `engine.sampling.probabilities`, for logits of float32 or a half type.

    Returns
    -------
    Tensor
        float32 `[..., V]`, each row sums to 1; NaN throughout a row that no token can be chosen
        from.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    probs, _, _ = _launch(rows, sampling, None, launch)
    return probs.view(logits.shape)


def sample(
    logits: Tensor, sampling: Sampling, u: Tensor, launch: SampleLaunch | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.sample`; the draw inverts the cumulative sum in the order of the ids.

    Parameters
    ----------
    logits : Tensor
        `[n, V]` float32 or a half type; rows may be strided.
    sampling : Sampling
        A temperature above 0.
    u : Tensor
        float64 `[n]` in [0, 1).
    launch : SampleLaunch, optional
        Instead of the default.

    Returns
    -------
    token, probs, bad : Tensor
        int64 `[n]`, float32 `[n, V]`, bool `[n]`.
    """
    probs, token, bad = _launch(logits, sampling, u, launch)
    return token, probs, bad


def _launch(
    logits: Tensor, sampling: Sampling, u: Tensor | None, launch: SampleLaunch | None
) -> tuple[Tensor, Tensor, Tensor]:
    check_dtype(logits)
    rows, vocab = logits.shape
    if sampling.greedy:
        raise ValueError("temperature 0 has no distribution: take the arg-max")
    if logits.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")
    launch = launch or SampleLaunch()
    tiny = torch.finfo(torch.float32).tiny
    sharpness = 1 / max(sampling.temperature, tiny)
    device = logits.device
    probs = torch.empty((rows, vocab), dtype=torch.float32, device=device)
    token = torch.empty(rows, dtype=torch.int64, device=device)
    bad = torch.empty(rows, dtype=torch.bool, device=device)
    if rows:
        _sample[(rows,)](
            logits,
            logits.stride(0),
            u,
            probs,
            token,
            bad,
            sharpness,
            max(sampling.top_p, tiny),
            sampling.top_k,
            V=vocab,
            TOP_K=0 < sampling.top_k < vocab,
            TOP_P=sampling.top_p < 1,
            BLOCK=min(launch.block, triton.next_power_of_2(vocab)),
            LIST=launch.list_block,
            STAGES=launch.num_stages,
            num_warps=launch.num_warps,
            **dependent(launch.pdl, device),
        )
    return probs, token, bad


@triton.jit(do_not_specialize=["top_k"])
def _sample(
    logits,
    stride,
    u,
    probs,
    token,
    bad,
    sharpness,
    top_p,
    top_k,
    V: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    BLOCK: tl.constexpr,
    LIST: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source, target = logits + row * stride, probs + row * V
    release_next(PDL)
    wait_for_previous(PDL)
    peak = find_peak(source, V, BLOCK, STAGES)
    good = (peak > -float("inf")) & (peak < float("inf"))
    farthest, lightest, equal, kept_equal = float("inf"), 0.0, 0, 0
    if TOP_K:
        total, cut = survey(source, peak, sharpness, top_k, True, V, BLOCK, STAGES)
    else:
        total, cut = survey(source, peak, sharpness, top_p, False, V, BLOCK, STAGES)
    if TOP_K or TOP_P:
        # the row of `probs` holds the list of candidates until it is written
        count = gather_near(source, target, peak, sharpness, cut, V, BLOCK, STAGES)
        if TOP_K:
            farthest = kth_distance(target, count, top_k, LIST)
            total, _ = weigh(target, count, farthest, -1.0, LIST)
        if TOP_P:
            needed = tl.cast(top_p, tl.float64) * total
            # what lies past the k-th is lighter than all within, and has no say
            lightest = lightest_weight(target, count, needed, LIST)
            heavier, equal = weigh(target, count, farthest, lightest, LIST)
            # a list that ends among equals takes the lower ids first
            each = tl.where(lightest > 0, lightest, 1.0).to(tl.float64)
            missing = tl.minimum(tl.maximum(tl.ceil((needed - heavier) / each), 1.0), equal)
            kept_equal = missing.to(tl.int32)
            total = heavier + kept_equal * lightest.to(tl.float64)
        tl.debug_barrier()
    scale = 1 / total.to(tl.float32)
    seen = 0
    if u is not None:
        rest = tl.load(u + row) * total
        passed = rest * 0
        chosen, last = -1, 0
    for first in tl.range(0, V, BLOCK, num_stages=STAGES):
        index = first + tl.arange(0, BLOCK)
        d = distances(source, first, peak, sharpness, V, BLOCK)
        weight = tl.exp(-d)
        kept = d <= farthest
        if TOP_P:
            tie = kept & (weight == lightest)
            kept = kept & (weight > lightest)
            if equal == kept_equal:
                kept = kept | tie
            else:
                kept = kept | (tie & (seen + tl.cumsum(tie.to(tl.int32), 0) <= kept_equal))
                seen += tl.sum(tie.to(tl.int32), 0)
        weight = tl.where(kept, weight, 0.0)
        prob = tl.where(good, weight * scale, float("nan"))
        tl.store(target + index, prob, mask=index < V)
        if u is not None:
            here = tl.sum(weight, 0).to(tl.float64)
            if (chosen < 0) & (passed + here > rest):
                beyond = (passed + tl.cumsum(weight.to(tl.float64), 0) > rest) & (weight > 0)
                found = tl.min(tl.where(beyond, index, V), 0)
                # sums in two orders may disagree: then the next token is the one
                chosen = tl.where(found < V, found, -1)
            last = tl.maximum(last, tl.max(tl.where(weight > 0, index, 0), 0))
            passed += here
    tl.store(bad + row, good == 0)
    if u is not None:
        chosen = tl.where(chosen < 0, last, chosen)
        tl.store(token + row, tl.where(good, chosen, 0).to(tl.int64))
