"""How many tokens a verification yields."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import ClassVar, Protocol

from specbench.results.cells import Cell, Group
from specbench.results.invariants import InvariantError
from specbench.results.metrics import Metric, Row, Table


@dataclass(frozen=True)
class Step:
    """One verification: drafts, drafts that were accepted *and* committed, tokens committed."""

    drafted: int
    accepted: int
    committed: int


class Stepped(Protocol):
    """A completed request: what each of its verifications drafted, accepted and committed."""

    @property
    def drafted(self) -> list[int] | None: ...

    @property
    def accepted(self) -> list[int]: ...

    @property
    def committed(self) -> list[int]: ...


def steps_of(record: Stepped) -> list[Step]:
    """The verify steps of a request; none where the engine does not say what it drafted.

    Where the output ends inside an accepted prefix (EOS, length limit), the drafts behind the end
    were accepted but never committed: they do not count as accepted.
    """
    if record.drafted is None:
        return []
    return [
        Step(drafted, min(accepted, committed), committed)
        for drafted, accepted, committed in zip(
            record.drafted, record.accepted, record.committed, strict=True
        )
    ]


@dataclass(frozen=True)
class Tally:
    """Sums over the steps of an arm that had drafts, from its records or another engine's counters.

    Attributes
    ----------
    rounds : int
        Such steps.
    drafted, accepted : int
        Tokens.
    reached : list of int
        For i = 1 … gamma, steps that accepted at least i.
    offered : list of int
        For i = 1 … gamma, steps with at least i drafts; the engine's counters take all steps.
    offered_next : list of int
        Those of them that accepted the i - 1 before.
    """

    rounds: int
    drafted: int
    accepted: int
    reached: list[int]
    offered: list[int]
    offered_next: list[int]


def tally(cell: Cell) -> Tally | None:
    """The sums of `cell`; None where they are unknown."""
    counted = cell.counters
    if counted is not None:
        reached = counted.accepted_per_position
        return Tally(
            rounds=counted.num_drafts,
            drafted=counted.draft_tokens,
            accepted=counted.accepted_tokens,
            reached=reached,
            offered=[counted.num_drafts] * len(reached),
            offered_next=[counted.num_drafts, *reached[:-1]],
        )
    if any(record.drafted is None for record in cell.requests):
        return None
    steps = [step for record in cell.healthy for step in steps_of(record)]
    return count_steps(steps, cell.gamma)


def count_steps(steps: Sequence[Step], gamma: int) -> Tally:
    """The sums over `steps` of at most `gamma` drafts."""
    places = range(1, gamma + 1)
    return Tally(
        rounds=sum(step.drafted > 0 for step in steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
        reached=[sum(step.accepted >= i for step in steps) for i in places],
        offered=[sum(step.drafted >= i for step in steps) for i in places],
        offered_next=[sum(s.drafted >= i and s.accepted >= i - 1 for s in steps) for i in places],
    )


class Acceptance(Metric):
    """Base of the figures that only a drafting arm has."""

    table: ClassVar[Table] = "acceptance"

    def applies(self, cell: Cell) -> bool:
        return cell.shows_acceptance


class AcceptanceLength(Acceptance):
    """Tokens committed per verify step, bonus included.

    Pooled over all steps, which weights long outputs more, and as the mean over requests;
    `drafted_acceptance_length` leaves out the steps that had no draft, as vLLM does.
    """

    columns = (
        "spec_decode_acceptance_length",
        "mean_request_acceptance_length",
        "drafted_acceptance_length",
    )

    def compute(self, cell: Cell, group: Group) -> Row:
        stepped = [r.committed for r in cell.healthy if r.committed]
        if not stepped:
            return {}
        pooled = sum(map(sum, stepped)) / sum(map(len, stepped))
        if not 1 <= pooled <= cell.gamma + 1:
            raise InvariantError(
                f"{cell.arm.name} on {cell.dataset.name}: AL {pooled} outside [1, gamma+1]"
            )
        sums = tally(cell)
        drafted = 1 + sums.accepted / sums.rounds if sums and sums.rounds else None
        return dict(zip(self.columns, (pooled, fmean(map(fmean, stepped)), drafted), strict=True))


class AcceptanceRate(Acceptance):
    """Accepted share of the drafts that were verified, and the counts behind it."""

    columns = (
        "spec_decode_acceptance_rate",
        "spec_decode_num_drafts",
        "spec_decode_draft_tokens",
        "spec_decode_accepted_tokens",
    )

    def compute(self, cell: Cell, group: Group) -> Row:
        sums = tally(cell)
        if sums is None:
            return {}
        rate = sums.accepted / sums.drafted if sums.drafted else None
        figures = (rate, sums.rounds, sums.drafted, sums.accepted)
        return dict(zip(self.columns, figures, strict=True))


class Histogram(Acceptance):
    """Verify steps, and how many of them accepted 0, 1, … gamma drafts.

    An engine's counters give the histogram of the steps that had drafts.
    """

    columns = ("num_verify_steps", "acceptance_histogram")

    def compute(self, cell: Cell, group: Group) -> Row:
        steps = sum(len(record.committed) for record in cell.healthy)
        sums = tally(cell)
        if sums is None:
            return {"num_verify_steps": steps}
        total = sums.rounds if cell.counters is not None else steps
        ladder = [total, *sums.reached, 0]
        histogram = [a - b for a, b in pairwise(ladder)]
        return {"num_verify_steps": steps, "acceptance_histogram": histogram}


class PerPosition(Acceptance):
    """Acceptance of the i-th draft, i = 1 … gamma.

    Cumulative: steps that accepted at least i over those that drafted at least i. Conditional: over
    those that also accepted the i-1 before it. None where the denominator is 0.
    """

    columns = (
        "spec_decode_per_position_acceptance_rates",
        "conditional_per_position_acceptance_rates",
    )

    def compute(self, cell: Cell, group: Group) -> Row:
        sums = tally(cell)
        if sums is None:
            return {}
        rates = (_ratios(sums.reached, sums.offered), _ratios(sums.reached, sums.offered_next))
        return dict(zip(self.columns, rates, strict=True))


def _ratios(parts: list[int], wholes: list[int]) -> list[float | None]:
    return [a / b if b else None for a, b in zip(parts, wholes, strict=True)]


ACCEPTANCE: tuple[Metric, ...] = (
    AcceptanceLength(),
    AcceptanceRate(),
    Histogram(),
    PerPosition(),
)
