"""Acceptance by draft position, for each source of the sets that drafts read."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from specbench.engine.generate import Generated, Progress, Request, generate
from specbench.engine.sampling import Sampling
from specbench.errors import DataError
from specbench.results.acceptance import count_steps, steps_of
from specbench.results.degenerate import is_degenerate
from specbench.results.stats import Estimate, proportion

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.engine.engine import Engine
    from specbench.methods.base import EngineMethod

COLUMNS = (
    "source",
    "position",
    "conditional_acceptance",
    "low",
    "high",
    "acceptance",
    "offered",
    "accepted",
    "spec_decode_acceptance_length",
    "steps",
)


def decode(
    engine: "Engine",
    method: "EngineMethod",
    requests: Sequence[Request],
    title: str,
    console: "Console",
) -> list[Generated]:
    """One greedy pass over `requests`, in their order; `title` stands at the progress bar."""
    from rich.progress import Progress as Bars

    engine.use(method, Sampling())
    done = []
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(title, total=sum(r.max_new_tokens for r in requests))
        progress = Progress(decoded=lambda count: bars.advance(bar, count))
        with closing(generate(engine, requests, progress)) as decoded:
            done = list(decoded)
    return sorted(done, key=lambda generated: generated.request.index)


def looping(passes: Mapping[str, Sequence[Generated]]) -> frozenset[int]:
    """Prompts whose output loops in any pass, which inflates acceptance."""
    return frozenset(
        generated.request.index
        for decoded in passes.values()
        for generated in decoded
        if is_degenerate(generated.output_ids)
    )


def acceptance_rows(
    passes: Mapping[str, Sequence[Generated]], gamma: int, excluded: frozenset[int]
) -> list[dict[str, Any]]:
    """The rows of ``acceptance_by_source.csv``.

    Parameters
    ----------
    passes : mapping of str to sequence of Generated
        The completed requests by source.
    gamma : int
    excluded : frozenset of int
        Prompts that are left out.

    Returns
    -------
    list of dict
        `conditional_acceptance` is the share of the `offered` steps, those that drafted this
        position and accepted all before it, that accepted it, with a 95 % interval that takes
        steps as independent; `acceptance` that of all steps that drafted it. None where no step
        did.

    Raises
    ------
    DataError
        A source without a step that had drafts.
    """
    table = []
    for source, decoded in passes.items():
        healthy = [g for g in decoded if g.request.index not in excluded]
        steps = [step for generated in healthy for step in steps_of(generated)]
        sums = count_steps(steps, gamma)
        if not sums.rounds:
            raise DataError(
                f"sets from {source}: no verification had drafts, since every output ended at "
                "once; take other prompts, or more of them with --num-prompts"
            )
        length = sum(step.committed for step in steps) / len(steps)
        for index, (accepted, offered) in enumerate(
            zip(sums.reached, sums.offered_next, strict=True)
        ):
            share = proportion(accepted, offered) if offered else Estimate()
            drafted = sums.offered[index]
            values = (
                *(source, index + 1, share.value, share.low, share.high),
                accepted / drafted if drafted else None,
                *(offered, accepted, length, len(steps)),
            )
            table.append(dict(zip(COLUMNS, values, strict=True)))
    return table
