"""`specbench run`: from a configuration to records, tables and an exit status."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.backends import Backends, EngineHost
from specbench.bench.environment import describe
from specbench.bench.estimate import estimate_cells, plan_table
from specbench.bench.lossless import Judge
from specbench.bench.passes import Runner, interleave
from specbench.bench.plan import Plan, make_plan
from specbench.bench.redact import redact
from specbench.bench.scheduled import settled
from specbench.bench.scoring import score_outputs
from specbench.bench.servers import Servers
from specbench.bench.shards import Shard
from specbench.bench.status import classify
from specbench.config import RunConfig
from specbench.errors import DataError, SpecbenchError, UsageError
from specbench.results.folder import refuse_unwritable
from specbench.results.reading import read_run
from specbench.results.records import RunRecord
from specbench.results.report import Summary, write_reports
from specbench.results.store import RunStore
from specbench.results.terminal import print_summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED, INTERRUPTED = 3, 130


def run_benchmark(
    config: RunConfig,
    *,
    console: "Console",
    argv: Sequence[str],
    shard: Shard | None = None,
    dry_run: bool = False,
) -> int:
    """Run every arm over every dataset and report.

    Parameters
    ----------
    config : RunConfig
        As given; what is None is chosen here.
    console : Console
        For choices, progress and the table.
    argv : sequence of str
        The command line, for the record.
    shard : Shard, optional
        The part of the plan to run, in a folder of its own within the output folder.
    dry_run : bool
        Print the plan with its memory and, where earlier runs tell, its time, and run nothing.

    Returns
    -------
    int
        0 passed, 1 a lossless method was not lossless, 3 an arm failed, 130 interrupted.

    Raises
    ------
    SpecbenchError
        Before anything was measured: nothing is written then.
    """
    import torch

    began = time.perf_counter()
    config = settled(config)
    folder = output_folder(config)
    if shard is not None:
        folder /= shard.folder
    config = config.model_copy(update={"output": folder})
    if not dry_run:
        _check_output(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    plan = make_plan(config)
    if shard is not None:
        plan = plan.part(shard)
    say_choices(plan, console)
    if dry_run:
        console.print(plan_cost(plan, folder))
        return 0
    return run_plan(plan, EngineHost(plan), folder, console=console, argv=argv, began=began)


def run_plan(
    plan: Plan,
    host: EngineHost,
    folder: Path,
    *,
    console: "Console",
    argv: Sequence[str],
    began: float,
    servers: Servers | None = None,
) -> int:
    """Run a plan into `folder` and report; see `run_benchmark`.

    Parameters
    ----------
    plan : Plan
    host : EngineHost
        May have its engine loaded already.
    folder : Path
        New, or that of the run to resume.
    console : Console
    argv : sequence of str
    began : float
        `time.perf_counter` at the start, for the seconds that are printed.
    servers : Servers, optional
        vLLM's processes that outlive this plan.
    """
    from specbench.engine.loader import describe_model

    def stuck(message: str) -> None:
        try:
            console.print(message, style="red", markup=False, highlight=False)
            _report(folder, console, began)
            sys.stdout.flush()
        finally:
            os._exit(FAILED)  # the main thread is beyond reach

    config = plan.config
    model = describe_model(
        str(config.model), config.model_revision, config.rope_scaling, config.seed
    )
    if plan.memory is not None:
        host.engine  # noqa: B018 - what cannot be loaded is refused before a record is written
    open_store = RunStore.resume if config.resume else RunStore.create
    with (
        open_store(folder, run_record(plan, model, argv)) as store,
        Backends(plan, host, folder, servers) as backends,
    ):
        passes = [
            entry
            for entry in interleave(plan.arms, plan.workloads, config.repeats)
            if plan.includes(entry.workload.info.name, entry.arm.name)
        ]
        failure = None
        try:
            Runner(config, backends, plan.rows, store, console, stuck).run(passes)
            backends.close_served()
            failure = _check_outputs(plan, host, store)
        except KeyboardInterrupt:
            said = "interrupted: a report of what there is follows; Ctrl-C again ends at once"
            console.print(said, highlight=False)
            backends.close_served()
            _report(folder, console, began)
            return INTERRUPTED
    summary = _report(folder, console, began)
    if failure:
        raise SpecbenchError(f"{failure}; --resume checks what is missing")
    return summary.exit_status


def say_choices(plan: Plan, console: "Console") -> None:
    """Print what was chosen for the user, and the memory that it takes."""
    refused = [f"{entry.name}: {entry.status}: {entry.message}" for entry in plan.refused]
    for line in (*plan.choices, *refused, *_memory_lines(plan)):
        console.print(line, style="dim", markup=False, highlight=False)


def _memory_lines(plan: Plan) -> list[str]:
    lines = [] if plan.memory is None else [f"memory {plan.memory}"]
    return [*lines, f"memory of {plan.residency}"] if plan.residency.shares else lines


def _check_outputs(plan: Plan, host: EngineHost, store: RunStore) -> str | None:
    """Append scores and verdicts; the message of what ended that, so that the report is made."""
    checks: dict[str, Callable[[], None]] = {
        "task scores": lambda: score_outputs(plan.workloads, store)
    }
    if plan.memory is not None:
        checks["losslessness"] = lambda: Judge(plan.config, host.engine, store).run(
            plan.arms, plan.workloads
        )
    failures = []
    for what, check in checks.items():
        try:
            check()
        except DataError:
            raise
        except Exception as error:  # measured records must not go unreported
            failures.append(f"{what} could not be checked: {classify(error)[1]}")
    return "; ".join(failures) or None


def _report(folder: Path, console: "Console", began: float) -> Summary:
    summary = write_reports(folder)
    print_summary(summary, console)
    seconds = time.perf_counter() - began
    console.print(
        f"{len(summary.files)} files in {folder} after {seconds:.0f} s",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return summary


def output_folder(config: RunConfig) -> Path:
    """The folder of the run: the one given, or a new one under ``runs/``.

    Raises
    ------
    UsageError
        A run to continue needs to be named.
    """
    if config.output is not None:
        return config.output
    if config.resume:
        raise UsageError("--resume needs --output, the folder of the run to continue")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    tuned = ["tuned"] if config.tuned else []
    names = "+".join([*config.method, *tuned, *(Path(name).stem for name in config.dataset)])
    return Path("runs") / f"{stamp}-{names.replace(':', '-')}"


def plan_cost(plan: Plan, folder: Path) -> "Table":
    """What the plan's cells take, as far as earlier runs near `folder` tell."""
    near = (entry for place in (folder.parent, Path("runs")) for entry in place.glob("*"))
    return plan_table(estimate_cells(plan, near))


def _check_output(config: RunConfig) -> None:
    """Refuse early what the store would refuse after the model is loaded."""
    assert config.output is not None, "called before it was chosen"
    if config.resume:
        read_run(config.output)
        refuse_unwritable(config.output)
    else:
        RunStore.check_free(config.output)


def run_record(plan: Plan, model: dict[str, Any], argv: Sequence[str]) -> RunRecord:
    """What is written down before a plan is run; `model` as `describe_model` gives it."""
    return RunRecord(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=redact(plan.config.model_dump(mode="json")),
        choices=plan.choices,
        environment=describe(argv),
        model=model,
        datasets=[workload.info for workload in plan.workloads],
        refused=plan.refused,
        arms=[arm.info for arm in plan.arms],
        cells=plan.cells,
        warnings=[line for workload in plan.workloads for line in workload.warnings],
    )
