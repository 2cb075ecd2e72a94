"""The gate before a timing: a kernel against its reference, on a smaller shape of the kind."""

from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.inputs import pool, randn, selected
from specbench.errors import NumericalError

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-2
"""Largest relative error (root mean squares) of a bf16 kernel."""

_CONTEXT, _BATCH, _LAYERS = 2_500, 2, 2


def check(case: Case, device: str = "cuda", seed: int | None = None) -> float:
    """The error of the case's kernel on fresh random inputs.

    Returns
    -------
    float
        Relative error; for a selection the share of rows whose set is not the best.

    Raises
    ------
    NumericalError
        It is beyond `TOLERANCE`, or NaN: the message names the case.
    """
    import torch

    small = replace(
        case,
        batch=min(case.batch, _BATCH),
        context=min(case.context, _CONTEXT),
        layers=min(case.layers, _LAYERS),
        entries=min(case.entries, _CONTEXT // 3),
    )
    made = {"verify": _verify, "sparse": _sparse, "select": _select}[case.op]
    error = made(small, device, int(torch.seed()) % 2**31 if seed is None else seed)
    if not error <= TOLERANCE:
        raise NumericalError(
            f"{case.name}: the kernel is off by {error:.2g} from its reference (at most "
            f"{TOLERANCE:g}), so it is not timed"
        )
    return error


def _verify(case: Case, device: str, seed: int) -> float:
    import torch

    from specbench.kernels.paged_attention import reference
    from specbench.kernels.paged_attention.reference import Collect
    from specbench.kernels.paged_attention.triton import PagedAttention

    keys, values, table = pool(case, device, seed)
    shape = case.batch, case.rows, case.heads, case.dim
    q = randn(shape, device, seed)
    kv_lens = _lengths(case, device)
    q_lens = torch.full_like(kv_lens, case.rows)
    ranked = kv_lens - case.rows + 1
    scores = torch.full((case.batch, case.kv_heads, case.context), torch.nan, device=device)
    collect = Collect()
    attention = PagedAttention(
        *(case.batch, case.rows, case.heads, case.kv_heads, case.dim, case.context),
        q.dtype,
        device,
        collect,
    )
    scale = case.dim**-0.5
    out = attention(q, keys, values, table, kv_lens, q_lens, scale, ranked=ranked, scores=scores)
    q32, k32, pages = q.float(), keys.float(), table.long()
    expected = reference.paged_attention(q32, k32, values.float(), pages, kv_lens, q_lens, scale)
    expected_scores = torch.empty_like(scores)
    reference.collect_scores(
        q32, k32, pages, kv_lens, q_lens, ranked, scale, collect, expected_scores
    )
    known = expected_scores.isfinite()
    errors = _relative(out, expected), _relative(scores[known], expected_scores[known])
    return torch.tensor(errors).max().item()  # which NaN is, where any is


def _sparse(case: Case, device: str, seed: int) -> float:
    import torch

    from specbench.kernels.sparse_attention import reference
    from specbench.kernels.sparse_attention.triton import sparse_attention

    keys, values, table = pool(case, device, seed)
    q = randn((case.batch, 1, case.heads, case.dim), device, seed)
    slots = selected(case, table, device, seed)
    tail = torch.full((case.batch, 1), -1, dtype=torch.int32, device=device)
    scale = case.dim**-0.5
    out = sparse_attention(q, keys, values, slots, tail, scale)
    expected = reference.sparse_attention(
        q.float(), keys.float(), values.float(), slots.long(), tail.long(), scale
    )
    return _relative(out, expected)


def _select(case: Case, device: str, seed: int) -> float:
    import torch

    from specbench.kernels.selection.triton import select

    generator = torch.Generator(device).manual_seed(seed)
    shape = case.layers, case.batch, case.kv_heads, case.context
    scores = torch.rand(shape, generator=generator, device=device).pow_(8)
    ranked = _lengths(case, device)
    keep = torch.full_like(ranked, case.entries)
    found = select(scores, ranked, keep, case.entries).long()
    candidate = torch.arange(case.context, device=device) < ranked[:, None]
    masked = scores.masked_fill(~candidate[:, None], -1)
    best = masked.topk(case.entries, -1).values
    chosen = masked.gather(-1, found.clamp(min=0)).sort(-1, descending=True).values
    distinct = found.sort(-1).values.diff(dim=-1).min(-1).values > 0
    right = (chosen == best).all(-1) & distinct & (found >= 0).all(-1)
    return 1 - right.float().mean().item()


def _lengths(case: Case, device: str) -> "Tensor":
    """Another length for each request, int32 `[R]`."""
    import torch

    row = torch.arange(case.batch, dtype=torch.int32, device=device)
    return case.context - row * (case.context // 3)


def _relative(found: "Tensor", expected: "Tensor") -> float:
    difference = (found.float() - expected.float()).norm()
    return (difference / expected.float().norm()).item()
