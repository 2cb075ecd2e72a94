"""`specbench tune`: from a configuration to a choice, its proof and an exit status."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.backends import EngineHost
from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.results.store import RunStore
from specbench.tune.final import compare, final_arms, run_final
from specbench.tune.job import prepare, study_name
from specbench.tune.measure import EngineMeasure
from specbench.tune.report import print_choice, write_comparison, write_tuned
from specbench.tune.space import Space, build_space
from specbench.tune.storage import (
    JOURNAL,
    check_study,
    open_storage,
    storage_errors,
    stored_identity,
)
from specbench.tune.tuning import Tuning
from specbench.tune.workers import Workers

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130


def run_tuning(config: TuneConfig, *, console: "Console", argv: Sequence[str]) -> int:
    """Tune one method on one dataset, and measure the choice on prompts held out.

    Parameters
    ----------
    config : TuneConfig
        As given; what is None is chosen here.
    console : Console
        For choices, progress and the results.
    argv : sequence of str
        The command line, for the records.

    Returns
    -------
    int
        0 passed, 1 the tuned method was not lossless, 3 an arm of the final run failed, 130
        interrupted.

    Raises
    ------
    SpecbenchError
        What cannot run, a storage that cannot be used or holds another tuning, a step of which
        every trial failed.
    """
    import torch

    began = time.perf_counter()
    space = build_space(config)
    folder = _output_folder(config, space)
    if config.threads:
        torch.set_num_threads(config.threads)
    threads = torch.get_num_threads()
    name = study_name(config)
    job = prepare(_with_stored_batch(config, name, folder), space, console)
    workers = Workers(config, job, name, folder, console)
    storage, where = open_storage(config.storage, folder)
    with storage_errors(where):
        check_study(storage, name, job.identity, config.resume, where)
        folder.mkdir(parents=True, exist_ok=True)
        host = EngineHost(job.plan)
        with workers:
            measure = EngineMeasure(
                host.engine, job.space, job.plan.config, job.plan.workloads[0].requests
            )
            tuning = Tuning(job, storage, name, measure, console)
            try:
                tuning.run()
                workers.join()
            except KeyboardInterrupt:
                return INTERRUPTED
            finally:
                tuning.write(folder)
            measure.close()
    torch.set_num_threads(threads)
    chosen = tuning.chosen[max(tuning.chosen)]
    write_tuned(folder, job.plan.config, job.space, chosen)
    arms = final_arms(job.plan.config, job.space, chosen)
    status = run_final(job.plan, host, job.held_out, arms, folder, console=console, argv=argv)
    if status == INTERRUPTED:
        return status
    comparisons = compare(folder)
    write_comparison(folder, comparisons)
    print_choice(console, tuning.chosen, tuning.titles, comparisons)
    seconds = time.perf_counter() - began
    console.print(f"{folder} after {seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)
    return status


def _with_stored_batch(config: TuneConfig, name: str, folder: Path) -> TuneConfig:
    """On a resume the batch of the start: the memory free now may suggest another one."""
    if not config.resume or config.batch_size is not None:
        return config
    storage, where = open_storage(config.storage, folder)
    with storage_errors(where):
        stored = stored_identity(storage, name)
    if stored is None:
        return config
    return config.model_copy(update={"batch_size": stored["config"]["batch_size"]})


def _output_folder(config: TuneConfig, space: Space) -> Path:
    """Where the results go; refuses what holds something else before a model is loaded."""
    folder = config.output
    if folder is None:
        if config.resume:
            raise UsageError("--resume needs --output, the folder of the tuning to continue")
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return Path("runs") / f"{stamp}-tune-{space.method.name}"
    journal = Path(config.storage) if config.storage else folder / JOURNAL
    if config.resume:
        if "://" not in str(config.storage) and not journal.is_file():
            raise UsageError(f"nothing to resume: there is no {journal}; leave out --resume")
    elif (folder / JOURNAL).is_file():
        raise UsageError(
            f"{folder} already holds a tuning: --resume continues it, or give another --output"
        )
    else:
        RunStore.check_free(folder)
    return folder
