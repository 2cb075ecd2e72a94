"""`specbench analyze vegas`: from a configuration to three measurements."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.analyze import acceptance, kernel_rows, overlap, plots, report
from specbench.analyze.config import AnalyzeConfig
from specbench.analyze.kernel_calls import Setup
from specbench.analyze.kernel_rows import time_rows
from specbench.analyze.overlap import RowSets, overlap_rows
from specbench.analyze.report import AnalysisRecord
from specbench.analyze.sources import sources
from specbench.bench.arms import Arm
from specbench.bench.backends import EngineHost
from specbench.bench.defaults import resolve_machine
from specbench.bench.kernels.cases import Case
from specbench.bench.plan import Plan, make_plan
from specbench.bench.run import run_record, say_choices
from specbench.errors import OutOfMemoryError
from specbench.methods.vegas import Vegas
from specbench.results.protocol import protocol_lines
from specbench.results.terminal import CPU_NOTE

if TYPE_CHECKING:
    from rich.console import Console

OVERLAP = "overlap"


def run_analysis(config: AnalyzeConfig, *, console: "Console", argv: Sequence[str]) -> int:
    """Time the kernels, compare the rows' sets, and compare what sets from them accept.

    Parameters
    ----------
    config : AnalyzeConfig
        As given; what is None is chosen here.
    console : Console
        For choices, progress and the tables.
    argv : sequence of str
        The command line, for the record.

    Returns
    -------
    int
        0.

    Raises
    ------
    SpecbenchError
        What cannot run, an output folder that is not empty, a kernel that is wrong, too little
        memory, prompts whose decoding has no step with drafts.
    """
    import torch

    from specbench.engine.loader import describe_model

    began = time.perf_counter()
    folder = config.output or _new_folder()
    report.check_free(folder)
    if config.threads:
        torch.set_num_threads(config.threads)
    run = config.run_config()
    machine, _ = resolve_machine(run)
    compared = sources(machine)
    arms = [Arm(OVERLAP, RowSets.from_config(machine))]
    plan = make_plan(run, arms + [Arm(name, method) for name, method in compared.items()])
    say_choices(plan, console)
    case, setup = kernel_rows.case_of(plan)
    kernel_rows.check_rows(case, config.query_rows)
    chosen = plan.config
    model = describe_model(
        str(chosen.model), chosen.model_revision, chosen.rope_scaling, chosen.seed
    )
    record = _record(plan, config, case, setup, model, argv)
    report.open_folder(folder, record)
    for line in protocol_lines(record):
        console.print(line, markup=False, highlight=False)
    if chosen.device == "cpu":
        console.print(CPU_NOTE, style="bold", markup=False, highlight=False)
    try:
        _measure_kernels(folder, record, case, setup, config, console)
        if model.get("dummy"):
            # random weights choose and accept at random
            _say(console, "overlap and acceptance: left out, they mean nothing of random weights")
        else:
            _measure_drafts(folder, record, plan, compared, console)
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"the device has too little memory for a batch of {plan.rows} x {plan.max_len:,} "
            "tokens: lower --batch-size or --context-len"
        ) from error
    count, seconds = len(list(folder.iterdir())), time.perf_counter() - began
    _say(console, f"{count} files in {folder} after {seconds:.0f} s")
    return 0


def _measure_kernels(
    folder: Path,
    record: AnalysisRecord,
    case: Case,
    setup: Setup,
    config: AnalyzeConfig,
    console: "Console",
) -> None:
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("attention of 1 row and more", total=config.query_rows)
        rows = time_rows(case, config.query_rows, setup, config.timings, lambda: bars.advance(bar))
    shape = (
        f"batch {case.batch} · {case.context} tokens of context · {case.heads} query heads, "
        f"{case.kv_heads} KV heads of {case.dim} · {setup.kind} kernels"
    )
    drawn = plots.draw_kernels(rows, [protocol_lines(record)[0], shape])
    report.write_measurement(folder, "kernel_rows", kernel_rows.COLUMNS, rows, drawn)
    report.print_kernels(console, rows)
    if setup.device == "cuda":
        import torch

        torch.cuda.empty_cache()  # the engine is loaded next


def _measure_drafts(
    folder: Path,
    record: AnalysisRecord,
    plan: Plan,
    compared: dict[str, Vegas],
    console: "Console",
) -> None:
    """Overlap, then acceptance, on one loaded engine."""
    caption, requests = protocol_lines(record), plan.workloads[0].requests
    engine = EngineHost(plan).engine
    method = plan.arms[0].method
    assert isinstance(method, RowSets)
    acceptance.decode(engine, method, requests, OVERLAP, console)
    rows = overlap_rows(method)
    method.unbind()
    drawn = plots.draw_overlap(rows, caption)
    report.write_measurement(folder, OVERLAP, overlap.COLUMNS, rows, drawn)
    report.print_overlap(console, rows)
    passes = {}
    for name, source in compared.items():
        passes[name] = acceptance.decode(engine, source, requests, f"sets from {name}", console)
        source.unbind()
    loops = acceptance.looping(passes)
    all_loop = len(loops) == len(requests)
    excluded = frozenset[int]() if all_loop else loops
    rows = acceptance.acceptance_rows(passes, method.gamma, excluded)
    drawn = plots.draw_acceptance(rows, caption)
    report.write_measurement(folder, "acceptance_by_source", acceptance.COLUMNS, rows, drawn)
    report.print_acceptance(console, rows)
    if loops:
        what = "all outputs loop, which inflates it" if all_loop else "left out, their outputs loop"
        _say(console, f"acceptance: {len(loops)} of {len(requests)} prompts: {what}")


def _record(
    plan: Plan,
    config: AnalyzeConfig,
    case: Case,
    setup: Setup,
    model: dict[str, Any],
    argv: Sequence[str],
) -> AnalysisRecord:
    run = run_record(plan, model, argv)
    kernels = {
        "kernels": setup.kind,
        "timer": "CUDA graph replays" if setup.graphs else "wall time",
        "batch": case.batch,
        "context": case.context,
        "query_rows": config.query_rows,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "head_dim": case.dim,
        "score": setup.score,
        "share": setup.share,
        "timings": config.timings,
    }
    return AnalysisRecord(**dict(run), kernels=kernels)


def _new_folder() -> Path:
    return Path("runs") / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-analyze-vegas"


def _say(console: "Console", text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
