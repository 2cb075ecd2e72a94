"""What is called to time attention at one number of query rows, and the check before it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.check import TOLERANCE
from specbench.bench.kernels.inputs import pool, randn
from specbench.bench.kernels.timing import Call
from specbench.config import Queries, Share
from specbench.errors import NumericalError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specbench.kernels.paged_attention.reference import Collect

Kind = Literal["triton", "reference"]
COLLECTED: tuple[Queries, ...] = ("first+last", "all")
_CHECKED_CONTEXT = 2_500


@dataclass(frozen=True)
class Setup:
    """What is timed beside the shape of a case.

    Attributes
    ----------
    kind : {"triton", "reference"}
        Whose kernels.
    device : str
    dtype : torch.dtype
    score, share
        As `Collect` has them.
    one_pass : bool
        Weights by normalisers that are known before, as the drafts leave them.
    """

    kind: Kind
    device: str
    dtype: "torch.dtype"
    score: Literal["logit", "weight"]
    share: Share
    one_pass: bool = False

    @property
    def graphs(self) -> bool:
        """Whether calls are timed as replays of CUDA graphs; otherwise by the clock on the wall."""
        return self.kind == "triton" and self.device == "cuda"

    def collect(self, queries: Queries) -> "Collect":
        """What a call collects from these rows."""
        from specbench.kernels.paged_attention.reference import Collect

        return Collect(self.score, queries, self.share)


class Inputs:
    """Random queries over a random cache, and what the kernels write.

    Attributes
    ----------
    out : Tensor
        `[R, Q, H, D]`, of Triton's calls.
    scores : Tensor
        float32 `[R, S, L]`, of calls that collect.
    """

    def __init__(
        self, case: Case, setup: Setup, cache: "tuple[Tensor, Tensor, Tensor]", seed: int
    ) -> None:
        import torch

        device = setup.device
        shape = case.batch, case.rows, case.heads, case.dim
        q = randn(shape, device, seed).to(setup.dtype)
        kv_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
        self.common = q, *cache, kv_lens, torch.full_like(kv_lens, case.rows), case.dim**-0.5
        self.ranked = kv_lens - case.rows + 1
        sets = case.kv_heads if setup.share == "head" else 1
        self.scores = torch.empty(case.batch, sets, case.context, device=device)
        self.out = torch.empty_like(q)
        self.one_pass = setup.one_pass

    def given_norm(self, collect: "Collect") -> "dict[str, Tensor]":
        """The normalisers of the rows that collect, where they are known before."""
        import torch

        if not self.one_pass:
            return {}
        requests, queries, heads, _ = self.out.shape
        rows = queries if collect.queries == "all" else 2
        # a random query's logits are spread by one, so that no weight is at its type's end
        known = math.log(self.scores.shape[-1]) + 0.5
        return {"norm": torch.full((requests, rows, heads), known, device=self.out.device)}

    def reference(self, collect: "Collect | None") -> "Callable[[], Tensor]":
        """Attention in plain torch, then, where it collects, the scores: the engine's CPU path."""
        from specbench.kernels.paged_attention import reference

        q, keys, _, table, kv_lens, q_lens, scale = self.common

        def call() -> "Tensor":
            out = reference.paged_attention(*self.common)
            if collect is not None:
                where = table, kv_lens, q_lens, self.ranked
                more = self.given_norm(collect)
                reference.collect_scores(q, keys, *where, scale, collect, self.scores, **more)
            return out

        return call

    def triton(self, collect: "Collect | None", attention: Any) -> Call:
        """One pass of the kernels with the workspace `attention`."""
        if collect is None:
            return lambda: attention(*self.common, out=self.out)
        lists = {"ranked": self.ranked, "scores": self.scores, **self.given_norm(collect)}
        return lambda: attention(*self.common, out=self.out, **lists)


def make_cache(case: Case, setup: Setup, seed: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Keys, values and block table of random pages."""
    keys, values, table = pool(case, setup.device, seed)
    return keys.to(setup.dtype), values.to(setup.dtype), table


def make_calls(
    inputs: Sequence[Inputs], case: Case, setup: Setup, collect: "Collect | None"
) -> list[Call]:
    """A call on each of `inputs`; Triton's share a workspace, as layers do."""
    if setup.kind == "reference":
        return [one.reference(collect) for one in inputs]
    from specbench.kernels.paged_attention.triton import PagedAttention

    attention = PagedAttention(
        *(case.batch, case.rows, case.heads, case.kv_heads, case.dim, case.context),
        setup.dtype,
        setup.device,
        collect,
        collect is not None and setup.one_pass,
    )
    return [one.triton(collect, attention) for one in inputs]


def check(case: Case, setup: Setup, seed: int = 0) -> float:
    """The error of Triton's kernels over a shorter context: relative, of root mean squares.

    Raises
    ------
    NumericalError
        It is beyond `TOLERANCE`, or NaN.
    """
    import torch

    small = replace(case, context=min(case.context, _CHECKED_CONTEXT))
    inputs = Inputs(small, setup, make_cache(small, setup, seed), seed)
    errors = []
    for collect in (None, *map(setup.collect, COLLECTED)):
        inputs.scores.fill_(torch.nan)
        (call,) = make_calls([inputs], small, setup, collect)
        call()
        out, scores = inputs.out.clone(), inputs.scores.clone()
        errors.append(_relative(out, inputs.reference(collect)()))
        if collect is not None:
            known = torch.isfinite(inputs.scores)
            errors.append(_relative(scores[known], inputs.scores[known]))
    error: float = torch.tensor(errors).max().item()  # NaN where any is
    if not error <= TOLERANCE:
        raise NumericalError(
            f"{case.name}: the kernel is off by {error:.2g} from its reference (at most "
            f"{TOLERANCE:g}), so it is not timed"
        )
    return error


def _relative(found: "Tensor", expected: "Tensor") -> float:
    difference = (found.float() - expected.float()).norm()
    return (difference / expected.float().norm()).item()
