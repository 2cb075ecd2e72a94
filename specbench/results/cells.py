"""One arm on one dataset: its records, which of them count, and how it ended."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specbench.errors import DataError
from specbench.results.invariants import check_plan, check_request, check_times
from specbench.results.reading import RunData
from specbench.results.records import (
    ArmInfo,
    ArmRecord,
    DatasetInfo,
    LosslessRecord,
    OverheadRecord,
    RequestRecord,
    RunRecord,
    ScoreRecord,
    SpecCounters,
    Status,
)

AUTOREGRESSIVE = "autoregressive"
VLLM = "vllm"


@dataclass(frozen=True)
class Cell:
    """An arm on a dataset.

    Attributes
    ----------
    requests : list of RequestRecord
        All on record, every repeat.
    excluded : frozenset of int
        Prompts whose output degenerated in any arm: they leave every arm's figures.
    all_degenerate : bool
        Nothing would remain, so nothing was excluded and the figures are marked.
    passes : list of ArmRecord
        The passes that ended, at most one a repeat.
    overhead : OverheadRecord or None
        The time split of a profiler trace, if one was taken.
    repeats : int
        Passes planned.
    full_batch : int
        Requests that decode together when the batch is full.
    """

    arm: ArmInfo
    dataset: DatasetInfo
    requests: list[RequestRecord]
    excluded: frozenset[int]
    all_degenerate: bool
    passes: list[ArmRecord]
    verdicts: list[LosslessRecord]
    scores: list[ScoreRecord]
    overhead: OverheadRecord | None
    repeats: int
    full_batch: int
    dummy: bool

    @cached_property
    def healthy(self) -> list[RequestRecord]:
        """The requests that figures are made of."""
        return [record for record in self.requests if record.index not in self.excluded]

    def window(self, record: RequestRecord) -> tuple[float, float, int]:
        """A request's part of the full steps: steps, their seconds, and its tokens in them.

        Every request of a step bears 1/running of it.
        """
        count = seconds = 0.0
        tokens = 0
        times = record.times.steps
        for step, running, committed in zip(
            times.step_s, times.running, record.committed, strict=True
        ):
            if running == self.full_batch:
                count += 1 / running
                seconds += step / running
                tokens += committed
        return count, seconds, tokens

    @property
    def status(self) -> Status | None:
        """How the arm ended; None while passes are outstanding.

        The first failed pass decides. Where all passed, one verdict of a lossless method that is
        not lossless makes it LOSSY.
        """
        ended = sorted(self.passes, key=lambda record: record.repeat)
        for record in ended:
            if record.status not in (Status.PASSED, Status.LOSSY):
                return record.status
        if len(ended) < self.repeats:
            return None
        if not self.requests:
            return Status.EMPTY
        lossy = any(record.status is Status.LOSSY for record in ended)
        if lossy or (self.arm.lossless and any(v.lossless is False for v in self.verdicts)):
            return Status.LOSSY
        return Status.PASSED

    @property
    def measured(self) -> bool:
        """Whether figures may be shown: the arm PASSED, or is LOSSY and flagged so."""
        return self.status in (Status.PASSED, Status.LOSSY)

    @property
    def gamma(self) -> int:
        """The most drafts of a step: the arm's setting, or else the most on record."""
        setting = self.arm.parameters.get("gamma")
        if isinstance(setting, int):
            return setting
        drafted = (r.accepted if r.drafted is None else r.drafted for r in self.requests)
        return max((max(counts, default=0) for counts in drafted), default=0)

    @cached_property
    def counters(self) -> SpecCounters | None:
        """What another engine counted of its speculation, all passes together."""
        found = [p.served.spec_decode for p in self.passes if p.served and p.served.spec_decode]
        if not found:
            return None
        columns = zip(*(counted.accepted_per_position for counted in found), strict=True)
        return SpecCounters(
            num_drafts=sum(counted.num_drafts for counted in found),
            draft_tokens=sum(counted.draft_tokens for counted in found),
            accepted_tokens=sum(counted.accepted_tokens for counted in found),
            accepted_per_position=[sum(column) for column in columns],
        )

    @property
    def speculative(self) -> bool:
        """Whether the arm drafts at all; acceptance is unknown, not 0, where it does not."""
        return self.arm.method != AUTOREGRESSIVE and self.gamma > 0

    @property
    def shows_acceptance(self) -> bool:
        """Whether acceptance means something: random weights accept at random."""
        return self.measured and self.speculative and not self.dummy

    @property
    def shows_throughput(self) -> bool:
        """Whether tokens per second mean something: with random weights only without drafts."""
        return self.measured and not (self.dummy and self.speculative)


@dataclass(frozen=True)
class Group:
    """The arms of one dataset, which are compared with each other."""

    cells: list[Cell]

    @property
    def autoregressive(self) -> Cell | None:
        """The paired baseline."""
        return self._find(AUTOREGRESSIVE)

    @property
    def vllm(self) -> Cell | None:
        """vLLM without speculation, under its own name."""
        return next((cell for cell in self.cells if cell.arm.name == VLLM), None)

    def _find(self, method: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.arm.method == method), None)


def build_groups(data: RunData) -> list[Group]:
    """The cells of a run, a group a dataset, arms in the order of the plan.

    Raises
    ------
    InvariantError
        A record contradicts itself or the plan; the message names it.
    DataError
        `run.json` lacks a setting that the figures need.
    """
    run = data.run
    check_plan(data)
    planned = None if run.cells is None else set(run.cells)
    return [
        Group(
            [
                _build_cell(data, arm, dataset)
                for arm in run.arms
                if planned is None or (dataset.name, arm.name) in planned
            ]
        )
        for dataset in run.datasets
    ]


def setting(run: RunRecord, name: str) -> Any:
    """A setting of the effective configuration that figures cannot do without."""
    value = run.config.get(name)
    if value is None:
        raise DataError(f"run.json has no effective {name!r} in its configuration")
    return value


def _build_cell(data: RunData, arm: ArmInfo, dataset: DatasetInfo) -> Cell:
    def mine(record: Any) -> bool:
        return record.arm == arm.name and record.dataset == dataset.name

    degenerate = frozenset(
        record.index
        for record in data.requests
        if record.dataset == dataset.name and record.degenerate
    )
    indices = {prompt.index for prompt in dataset.prompts}
    nothing_left = bool(degenerate) and degenerate >= indices
    cell = Cell(
        arm=arm,
        dataset=dataset,
        requests=sorted(filter(mine, data.requests), key=lambda record: record.key),
        excluded=frozenset() if nothing_left else degenerate,
        all_degenerate=nothing_left,
        passes=list(filter(mine, data.passes)),
        verdicts=list(filter(mine, data.verdicts)),
        scores=list(filter(mine, data.scores)),
        # a later one replaces those before it
        overhead=next(filter(mine, reversed(data.overheads)), None),
        repeats=setting(data.run, "repeats"),
        full_batch=min(setting(data.run, "batch_size"), len(dataset.prompts)),
        dummy=bool(data.run.model.get("dummy")),
    )
    for record in cell.requests:
        check_request(record, cell.gamma, cell.full_batch)
        check_times(record)
    return cell
