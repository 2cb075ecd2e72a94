"""One pass of an arm over a dataset: timed, recorded as it goes, its end given a status."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specbench.bench.arms import Arm
from specbench.bench.backend import Backend
from specbench.bench.backends import Backends
from specbench.bench.progress import PlanProgress
from specbench.bench.redact import redact_message
from specbench.bench.status import classify
from specbench.bench.watchdog import Watchdog
from specbench.bench.workload import Workload
from specbench.config import RunConfig
from specbench.engine.generate import Generated, Progress
from specbench.engine.sampling import Sampling
from specbench.errors import DataError, SpecbenchError
from specbench.results.degenerate import is_degenerate
from specbench.results.records import ArmRecord, OverheadRecord, RequestRecord, Status
from specbench.results.store import RunStore

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.engine.probe import Probe


@dataclass(frozen=True)
class Pass:
    """An arm over a dataset in one repeat."""

    arm: Arm
    workload: Workload
    repeat: int

    @property
    def key(self) -> tuple[str, str, int]:
        """As `record_key` gives it."""
        return self.arm.name, self.workload.info.name, self.repeat


def interleave(arms: list[Arm], workloads: list[Workload], repeats: int) -> list[Pass]:
    """The plan: a dataset after the other, its arms in turn within each repeat (A B A B)."""
    return [
        Pass(arm, workload, repeat)
        for workload in workloads
        for repeat in range(repeats)
        for arm in arms
    ]


class Runner:
    """Runs passes and writes their records.

    Parameters
    ----------
    config : RunConfig
        Fully resolved.
    backends : Backends
    rows : int
        Requests that decode together.
    store : RunStore
    console : Console
        For progress bars.
    stuck : callable
        Takes the message of a pass that cannot be ended, once it is on record, and ends the run.
    """

    def __init__(
        self,
        config: RunConfig,
        backends: Backends,
        rows: int,
        store: RunStore,
        console: "Console",
        stuck: Callable[[str], None],
    ) -> None:
        self.config = config
        self.backends = backends
        self.rows = rows
        self.store = store
        self.console = console
        self.stuck = stuck
        self._warm: set[tuple[str, str]] = set()

    def run(self, plan: list[Pass]) -> None:
        """Run what is not on record yet; an arm that failed on a dataset is not tried again."""
        ended = {(r.arm, r.dataset, r.repeat): r.status for r in self.store.load_arms()}
        failed: set[tuple[str, str]] = set()
        with PlanProgress(self.console, len(plan)) as progress:
            for entry in plan:
                cell, failure = entry.key[:2], None
                if ended.get(entry.key) is not Status.PASSED and cell not in failed:
                    status, message = self._run(entry, progress)
                    if status is not Status.PASSED:
                        failed.add(cell)
                        failure = f"{' on '.join(cell)}: {status}: {message}"
                progress.ended(failure)

    def _run(self, entry: Pass, bars: PlanProgress) -> tuple[Status, str | None]:
        done = {record.key for record in self.store.load_requests()}
        requests = [r for r in entry.workload.requests if (*entry.key, r.index) not in done]
        status, message = Status.PASSED, None
        backend = self.backends[entry.arm]
        try:
            self.backends.open(entry.arm)
            with self._watchdog(entry, backend) as dog:
                self._warm_up(entry, backend, dog)
                backend.reset_peak()
                sampling = Sampling.from_config(self.config, entry.repeat)
                arm, dataset, repeat = entry.key
                title = f"{dataset} {arm} {repeat + 1}/{self.config.repeats}"
                progress = dog.listen(bars.start(title, requests))
                fresh = not self.config.reuse_prompts or repeat == 0
                segment = self.store.segment
                made = backend.generate(requests, sampling, progress, segment, fresh)
                # closed at once when a record cannot be written, not when it is collected
                with closing(dog.watch(made)) as decoded:
                    for generated in decoded:
                        self.store.append_request(to_record(entry, generated))
            if entry.repeat == 0:
                self._measure_overhead(entry, backend)
        except DataError:  # a record that cannot be written ends the run, not the arm
            raise
        except Exception as error:  # an arm's boundary: the other arms go on
            status, message = classify(error)
            message = redact_message(message)
        if status is not Status.PASSED:  # only here is the error gone, and with it what it held
            backend.recover()
        self.store.append_arm(_arm_record(entry, backend, status, message))
        return status, message

    def _watchdog(self, entry: Pass, backend: Backend) -> Watchdog:
        """Ends the pass, or with it the run, where no token comes for too long."""

        def stuck(message: str) -> None:
            self.store.append_arm(_arm_record(entry, backend, Status.TIMEOUT, message))
            self.stuck(f"{' on '.join(entry.key[:2])}: {Status.TIMEOUT}: {message}")

        return Watchdog(None if backend.times_out else self.config.timeout, stuck)

    def _measure_overhead(self, entry: Pass, backend: Backend) -> None:
        """Split an iteration's device time, off the clock of the passes."""
        first = entry.workload.requests[: self.rows]
        try:
            found = backend.overhead(first, Sampling.from_config(self.config))
        except SpecbenchError as error:
            arm, dataset, _ = entry.key
            self.console.print(
                f"{arm} on {dataset}: no time split: {error}", markup=False, highlight=False
            )
            return
        if found is not None:
            self.store.append_overhead(to_overhead(entry, found))

    def _warm_up(self, entry: Pass, backend: Backend, dog: Watchdog) -> None:
        """Decode some tokens at the measured shapes, off the record."""
        cell = entry.key[:2]
        if cell in self._warm:
            return
        first = entry.workload.requests[: self.rows]
        warm = [
            replace(r, max_new_tokens=min(backend.warm_tokens, r.max_new_tokens)) for r in first
        ]
        fresh = not self.config.reuse_prompts
        progress, sampling = dog.listen(Progress()), Sampling.from_config(self.config)
        made = backend.generate(warm, sampling, progress, 0, fresh)
        with closing(dog.watch(made)) as decoded:
            for _ in decoded:
                pass
        self._warm.add(cell)


def _arm_record(entry: Pass, backend: Backend, status: Status, message: str | None) -> ArmRecord:
    arm, dataset, repeat = entry.key
    return ArmRecord(
        arm=arm,
        dataset=dataset,
        repeat=repeat,
        status=status,
        message=message,
        graph_mode=backend.graph_mode,
        attention_backend=backend.attention_backend,
        peak_memory_bytes=backend.peak_memory(),
        served=backend.served,
    )


def to_overhead(entry: Pass, found: "Probe") -> OverheadRecord:
    """The record of a probe; what choosing adds to other parts is selection's."""
    arm, dataset, _ = entry.key
    without = found.frozen_split
    return OverheadRecord(
        arm=arm,
        dataset=dataset,
        iterations=found.iterations,
        iteration_ms=1e3 * found.iteration,
        draft_ms=1e3 * without.phases["draft"],
        verify_ms=1e3 * without.phases["verify"],
        selection_ms=1e3 * found.selection,
        sampling_ms=1e3 * without.phases["sampling"],
        other_ms=1e3 * (without.other + without.gaps),
        selection_trace_ms=1e3 * found.selection_in_trace,
        draft_bytes=found.traffic.draft if found.traffic else None,
        iteration_bytes=found.traffic.iteration if found.traffic else None,
        copy_gb_per_s=1e-9 * found.copy_bytes_per_s if found.copy_bytes_per_s else None,
    )


def to_record(entry: Pass, generated: Generated) -> RequestRecord:
    """The record of a completed request."""
    request = generated.request
    arm, dataset, repeat = entry.key
    return RequestRecord(
        arm=arm,
        dataset=dataset,
        repeat=repeat,
        index=request.index,
        item_id=request.item_id,
        prompt_tokens=len(request.token_ids),
        output_ids=generated.output_ids,
        finish_reason=generated.finish_reason,
        drafted=generated.drafted,
        accepted=generated.accepted,
        committed=generated.committed,
        degenerate=is_degenerate(generated.output_ids),
        times=generated.times,
    )
