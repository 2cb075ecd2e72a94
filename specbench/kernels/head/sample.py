"""Temperature, top-k, top-p and the draw without a sort, in Triton."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from specbench.engine.sampling import Sampling
from specbench.kernels.head.choose import choose_tokens, spread_weights, survey_groups
from specbench.kernels.launch import check_dtype, dependent

# groups that a program holds in registers, at most
_MOST_GROUPS = 1024


@dataclass(frozen=True)
class SampleLaunch:
    """How a row is cut; any choice gives the same result up to rounding.

    Attributes
    ----------
    group : int
        Tokens whose best one is known before candidates are listed, a power of two; larger where a
        vocabulary has more groups than a program holds.
    chunk, step : int
        Tokens of a program that surveys or writes, and those at a time of the one that chooses;
        powers of two, at least `group`.
    few : int
        Candidates that are compared with each other, at most, a power of two.
    list_block : int
        Of more candidates, those of the threshold search at a time, a power of two.
    capacity : int
        Candidates that are listed, at most: rows that have more are searched as a whole.
    num_warps : int
        Of the program that chooses a row's token.
    pdl : bool
        Programmatic dependent launch.
    """

    group: int = 256
    chunk: int = 4096
    step: int = 1024
    few: int = 64
    list_block: int = 256
    capacity: int = 4096
    num_warps: int = 8
    pdl: bool = True


def probabilities(logits: Tensor, sampling: Sampling, launch: SampleLaunch | None = None) -> Tensor:
    """As `engine.sampling.probabilities`, for logits of float32 or a half type.

    Returns
    -------
    Tensor
        float32 `[..., V]`, each row sums to 1; NaN throughout a row that no token can be chosen
        from.
    """
    return distribution(logits, sampling, launch)[0]


def distribution(
    logits: Tensor, sampling: Sampling, launch: SampleLaunch | None = None
) -> tuple[Tensor, Tensor]:
    """The same, and which rows no token can be chosen from: bool `[...]`."""
    rows = logits.reshape(-1, logits.shape[-1])
    probs, _, bad = _launch(rows, sampling, None, launch)
    return probs.view(logits.shape), bad.view(logits.shape[:-1])


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
    if not rows:
        return probs, token, bad
    group = max(launch.group, triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS)))
    chunk, step = max(launch.chunk, group), max(launch.step, group)
    groups, chunks = triton.cdiv(vocab, group), triton.cdiv(vocab, chunk)
    top_k, top_p = 0 < sampling.top_k < vocab, sampling.top_p < 1
    best, mass = torch.empty((2, rows, groups), dtype=torch.float32, device=device)
    options = dependent(launch.pdl, device)
    size = {"V": vocab, "GROUP": group}
    survey_groups[(rows, chunks)](
        logits,
        logits.stride(0),
        probs,
        best,
        mass,
        sharpness,
        ALL=not (top_k or top_p),
        GROUPS=groups,
        CHUNK=chunk,
        **size,
        **options,
    )
    scale = torch.empty((rows, 2), dtype=torch.float32, device=device)
    capacity = launch.capacity if top_k or top_p else 0
    choose_tokens[(rows,)](
        logits,
        logits.stride(0),
        u,
        probs,
        token,
        bad,
        best,
        mass,
        torch.empty((rows, groups), dtype=torch.int32, device=device),
        torch.empty((rows, capacity), dtype=torch.float32, device=device),
        torch.empty((rows, capacity), dtype=torch.int32, device=device),
        scale,
        sharpness,
        max(sampling.top_p, tiny),
        sampling.top_k,
        TOP_K=top_k,
        TOP_P=top_p,
        GROUPS=groups,
        PADDED=triton.next_power_of_2(groups),
        FEW=launch.few,
        LIST=launch.list_block,
        CAPACITY=capacity,
        CHUNK=step,
        num_warps=launch.num_warps,
        **size,
        **options,
    )
    if not (top_k or top_p):
        spread_weights[(rows, chunks)](
            logits, logits.stride(0), probs, scale, sharpness, V=vocab, CHUNK=chunk, **options
        )
    return probs, token, bad
