"""`specbench run`: from a configuration to records, tables and an exit status."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.arms import Arm, build_arms
from specbench.bench.defaults import resolve_machine
from specbench.bench.environment import describe
from specbench.bench.lossless import Judge
from specbench.bench.memory import MemoryPlan, available_bytes, check_memory, gib, plan_memory
from specbench.bench.passes import Runner, interleave
from specbench.bench.redact import redact
from specbench.bench.workload import Workload, build_workloads, fit_context
from specbench.config import RunConfig
from specbench.errors import OutOfMemoryError, UsageError
from specbench.results.reading import read_run
from specbench.results.records import RunRecord
from specbench.results.report import Summary, write_reports
from specbench.results.store import RunStore
from specbench.results.terminal import print_summary

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.engine.model_config import ModelConfig

INTERRUPTED = 130
_LARGEST_BATCH = 64


def run_benchmark(config: RunConfig, *, console: "Console", argv: Sequence[str]) -> int:
    """Run every arm over every dataset and report.

    Parameters
    ----------
    config : RunConfig
        As given; what is None is chosen here.
    console : Console
        For choices, progress and the table.
    argv : sequence of str
        The command line, for the record.

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

    from specbench.engine.engine import Engine
    from specbench.engine.loader import load_model, read_model_config
    from specbench.engine.tokenizer import load_tokenizer

    began = time.perf_counter()
    folder = _output_folder(config)
    config, choices = resolve_machine(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    arms = build_arms(config)
    spec, dtype = str(config.model), getattr(torch, str(config.dtype))
    shape = read_model_config(spec, config.model_revision, config.rope_scaling)
    tokenizer = load_tokenizer(spec, config.model_revision)
    workloads = build_workloads(config, shape, tokenizer)
    config, shape, note = fit_context(config, shape, workloads)
    choices += [line for w in workloads for line in w.notes] + ([note] if note else [])
    max_len = max(workload.max_len for workload in workloads)
    config, memory = _fit_memory(config, shape, dtype, arms, workloads, max_len, choices)
    for line in choices:
        console.print(f"{line}", style="dim", markup=False, highlight=False)
    console.print(f"memory {memory}", style="dim", markup=False, highlight=False)
    loaded = load_model(
        spec,
        device=str(config.device),
        dtype=dtype,
        max_len=max_len,
        revision=config.model_revision,
        rope_scaling=config.rope_scaling,
        seed=config.seed,
    )
    record = _run_record(config, choices, loaded.provenance, workloads, arms, argv)
    with (
        RunStore.resume(folder, record)
        if config.resume
        else RunStore.create(folder, record) as store
    ):
        engine = Engine(
            loaded.model,
            rows=_rows(config, workloads),
            max_len=max_len,
            ignore_eos=config.ignore_eos,
            prefill_chunk=config.prefill_chunk,
        )
        try:
            Runner(config, engine, store, console).run(interleave(arms, workloads, config.repeats))
            Judge(config, engine, store).run(arms, workloads)
        except KeyboardInterrupt:
            _report(folder, console, began)
            return INTERRUPTED
    return _report(folder, console, began).exit_status


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


def _output_folder(config: RunConfig) -> Path:
    """Where the run goes; refuses early what the store would refuse after the model is loaded."""
    if config.output is None:
        if config.resume:
            raise UsageError("--resume needs --output, the folder of the run to continue")
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        names = "+".join([*config.method, *(Path(name).stem for name in config.dataset)])
        return Path("runs") / f"{stamp}-{names.replace(':', '-')}"
    if config.resume:
        read_run(config.output)
    else:
        RunStore.check_free(config.output)
    return config.output


def _rows(config: RunConfig, workloads: list[Workload]) -> int:
    return min(config.batch_size or 1, max(len(w.requests) for w in workloads))


def _fit_memory(
    config: RunConfig,
    shape: "ModelConfig",
    dtype: Any,
    arms: list[Arm],
    workloads: list[Workload],
    max_len: int,
    choices: list[str],
) -> tuple[RunConfig, MemoryPlan]:
    """Choose the largest batch that fits, or check the one asked for."""
    device = str(config.device)
    free = available_bytes(device)

    def plan(batch: int) -> tuple[RunConfig, MemoryPlan]:
        chosen = config.model_copy(update={"batch_size": batch})
        memory = plan_memory(
            shape,
            dtype,
            [arm.method for arm in arms],
            rows=_rows(chosen, workloads),
            max_len=max_len,
            prefill_chunk=config.prefill_chunk,
            sampled=config.temperature > 0,
        )
        check_memory(memory, free, _rows(chosen, workloads), max_len)
        return chosen, memory

    if config.batch_size is not None:
        return plan(config.batch_size)
    if config.resume and config.output is not None:
        # the memory that is free now may suggest another batch than the run began with
        return plan(read_run(config.output).config["batch_size"])
    for batch in range(min(_LARGEST_BATCH, max(len(w.requests) for w in workloads)), 0, -1):
        try:
            found = plan(batch)
        except OutOfMemoryError:
            if batch == 1:
                raise
            continue
        choices.append(f"batch-size {batch}: the largest that fits {gib(free or 0)} of free memory")
        return found
    raise UsageError("no prompts to choose a batch for")


def _run_record(
    config: RunConfig,
    choices: list[str],
    model: dict[str, Any],
    workloads: list[Workload],
    arms: list[Arm],
    argv: Sequence[str],
) -> RunRecord:
    return RunRecord(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=redact(config.model_dump(mode="json")),
        choices=choices,
        environment=describe(argv),
        model=model,
        datasets=[workload.info for workload in workloads],
        arms=[arm.info for arm in arms],
        warnings=[],
    )
