"""The gate before a timing: the kernels that are to be timed against their references.

They run as in the timing, compiled for its shapes and strides, over shorter contexts (a selection:
over fewer layers), so that a reference is soon computed and nothing is compiled for the gate alone.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.inputs import PAGE, chains, pool, randn, sampled, selected
from specbench.bench.kernels.trees import check_tree
from specbench.errors import NumericalError

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-2
"""Largest relative error (root mean squares) of a bf16 kernel."""

_CONTEXT, _LAYERS = 2_500, 2


def check(case: Case, device: str = "cuda", seed: int | None = None) -> float:
    """The error of the case's kernel on fresh random inputs.

    Returns
    -------
    float
        Relative error; for a selection the share of rows whose set is not the best, and of a choice
        of tokens, if that is more, the share that are not the reference's.

    Raises
    ------
    NumericalError
        It is beyond `TOLERANCE`, or NaN: the message names the case.
    """
    import torch

    made = {
        "verify": _verify,
        "tree": _tree,
        "sparse": _sparse,
        "select": _select,
        "sample": _sample,
        "accept": _accept,
    }[case.op]
    error = made(case, device, int(torch.seed()) % 2**31 if seed is None else seed)
    if not error <= TOLERANCE:
        raise NumericalError(
            f"{case.name}: the kernel is off by {error:.2g} from its reference (at most "
            f"{TOLERANCE:g}), so it is not timed"
        )
    return error


def _verify(case: Case, device: str, seed: int) -> float:
    """Without collection, with exact weights, and with weights in one pass."""
    import torch

    from specbench.kernels.paged_attention import reference
    from specbench.kernels.paged_attention.reference import Collect
    from specbench.kernels.paged_attention.triton import PagedAttention
    from specbench.methods.vegas import VegasParameters

    short = replace(case, context=min(case.context, _CONTEXT))
    keys, values, pages = pool(short, device, seed)
    table = pages.new_zeros(case.batch, -(-case.context // PAGE))
    table[:, : pages.shape[1]] = pages
    q = randn((case.batch, case.rows, case.heads, case.dim), device, seed)
    kv_lens = _lengths(short, case.rows, device)
    q_lens = torch.full_like(kv_lens, case.rows)
    ranked = kv_lens - case.rows + 1
    kind = getattr(torch, case.scores)
    whole = torch.full((case.batch, case.kv_heads, case.context), torch.nan, device=device)
    scores = whole.to(kind)[..., : short.context]
    collect = Collect(queries=VegasParameters().queries)
    scale = case.dim**-0.5
    q32, k32, long = q.float(), keys.float(), pages.long()
    lengths = kv_lens, q_lens
    expected = reference.paged_attention(q32, k32, values.float(), long, *lengths, scale)
    expected_scores = torch.empty_like(scores, dtype=torch.float32)
    reference.collect_scores(q32, k32, long, *lengths, ranked, scale, collect, expected_scores)
    known = expected_scores.isfinite()
    lse = reference.log_sum_exp(q32, k32, long, *lengths, scale)
    norm = lse[:, collect.rows(case.rows)].contiguous()
    errors = []
    for kind, one_pass in ((None, False), (collect, False), (collect, True)):
        attention = PagedAttention(
            *(case.batch, case.rows, case.heads, case.kv_heads, case.dim, case.context),
            *(q.dtype, device, kind, one_pass),
        )
        more = {} if kind is None else {"ranked": ranked, "scores": scores}
        if one_pass:
            more["norm"] = norm
        out = torch.full_like(q, torch.nan)
        scores.fill_(torch.nan)
        attention(q, keys, values, table, *lengths, scale, out=out, **more)
        errors.append(_relative(out, expected))
        if kind is not None:
            errors.append(_relative(scores[known], expected_scores[known]))
    return torch.tensor(errors).max().item()  # which NaN is, where any is


def _tree(case: Case, device: str, seed: int) -> float:
    """Ours, and torch's two that stand beside it."""
    import torch

    *found, expected = check_tree(replace(case, context=min(case.context, _CONTEXT)), device, seed)
    return torch.tensor([_relative(out, expected) for out in found]).max().item()


def _sparse(case: Case, device: str, seed: int) -> float:
    import torch

    from specbench.kernels.sparse_attention import reference
    from specbench.kernels.sparse_attention.triton import sparse_attention

    short = replace(case, context=min(case.context, max(_CONTEXT, 2 * case.entries)))
    keys, values, table = pool(short, device, seed)
    q = randn((case.batch, 1, case.heads, case.dim), device, seed)
    slots = selected(short, table, device, seed)
    tail = torch.full((case.batch, 1), -1, dtype=torch.int32, device=device)
    scale = case.dim**-0.5
    if device == "cuda":
        torch.cuda.synchronize()  # what is settled was written well before
    out = sparse_attention(q, keys, values, slots, tail, scale, settled=True)
    expected = reference.sparse_attention(
        q.float(), keys.float(), values.float(), slots.long(), tail.long(), scale
    )
    return _relative(out, expected)


def _select(case: Case, device: str, seed: int) -> float:
    import torch

    from specbench.kernels.selection.triton import select
    from specbench.kernels.selection.workspace import SelectionWorkspace

    generator = torch.Generator(device).manual_seed(seed)
    shape = min(case.layers, _LAYERS), case.batch, case.kv_heads, case.context
    scores = torch.rand(shape, generator=generator, device=device).pow_(8)
    scores = scores.to(getattr(torch, case.scores))
    ranked = _lengths(case, case.entries, device)
    keep = torch.full_like(ranked, case.entries)
    out = torch.empty(*shape[:3], case.entries, dtype=torch.int32, device=device)
    # for all layers, which decides how the kernel is launched
    lists = case.layers * case.batch * case.kv_heads
    workspace = SelectionWorkspace(lists, case.context, case.entries, device, dtype=scores.dtype)
    found = select(scores, ranked, keep, case.entries, workspace=workspace, out=out).long()
    candidate = torch.arange(case.context, device=device) < ranked[:, None]
    masked = scores.masked_fill(~candidate[:, None], -1)
    best = masked.topk(case.entries, -1).values
    chosen = masked.gather(-1, found.clamp(min=0)).sort(-1, descending=True).values
    distinct = found.sort(-1).values.diff(dim=-1).min(-1).values > 0
    right = (chosen == best).all(-1) & distinct & (found >= 0).all(-1)
    return 1 - right.float().mean().item()


def _lengths(case: Case, least: int, device: str) -> "Tensor":
    """Another length for each request, int32 `[R]`, `least` at least."""
    import torch

    row = torch.arange(case.batch, dtype=torch.int32, device=device)
    return case.context - row * ((case.context - least) // case.batch)


def _sample(case: Case, device: str, seed: int) -> float:
    from specbench.engine import sampling
    from specbench.kernels.head.sample import sample

    drawn, logits, u = sampled(case, device, seed)
    token, probs, bad = sample(logits, drawn, u[:, 0].contiguous())
    expected = sampling.probabilities(logits.float(), drawn)
    # of the probabilities as they were found: rounding may move the end of either by a token
    wrong = (token != sampling.draw(probs, u[:, 0])) | bad
    return max(_relative(probs, expected), wrong.float().mean().item())


def _accept(case: Case, device: str, seed: int) -> float:
    from specbench.engine import acceptance
    from specbench.kernels.head.accept import accept_sampled

    given = chains(case, device, seed)
    found, expected = accept_sampled(*given), acceptance.accept_sampled(*given)
    return max((a != b).float().mean().item() for a, b in zip(found, expected, strict=True))


def _relative(found: "Tensor", expected: "Tensor") -> float:
    difference = (found.float() - expected.float()).norm()
    return (difference / expected.float().norm()).item()
