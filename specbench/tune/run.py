"""`specbench tune`: from a configuration to a choice, its proof and an exit status."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.backends import Weights
from specbench.bench.loads import split_loads
from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.results.store import RunStore
from specbench.tune.job import largest, prepare_loads, study_name
from specbench.tune.load import LoadTuning
from specbench.tune.loads import pinned
from specbench.tune.space import Space, build_space
from specbench.tune.storage import (
    JOURNAL,
    check_studies,
    load_study,
    open_storage,
    storage_errors,
    stored_identity,
)
from specbench.tune.table import write_table
from specbench.tune.workers import Workers

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130


def run_tuning(config: TuneConfig, *, console: "Console", argv: Sequence[str]) -> int:
    """Tune one method on one dataset for each load, and measure the choices on prompts held out.

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
        0 passed, 1 the tuned method was not lossless, 3 an arm of the final run failed or a load
        has no choice, 130 interrupted.

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
    parts = split_loads(config)
    name = study_name(next(iter(parts.values())))
    for key, part in parts.items():
        parts[key] = _with_stored_batch(part, load_study(name, key), folder)
    jobs = prepare_loads(parts, space, console)
    fixed = {load_study(name, key): pinned(parts[key], job) for key, job in jobs.items()}
    device = str(next(iter(jobs.values())).plan.config.device)
    workers = Workers(config, fixed, device, folder, console)
    storage, where = open_storage(config.storage, folder)
    weights = Weights(largest(jobs.values()).plan)
    with storage_errors(where):
        identities = {key: job.identity for key, job in jobs.items()}
        check_studies(storage, name, identities, config.resume, where)
        folder.mkdir(parents=True, exist_ok=True)
    loads = [
        LoadTuning(key, job, folder / key, weights, console, argv, alone=len(jobs) == 1)
        for key, job in jobs.items()
    ]
    # with further workers all loads are tuned before any choice is proved with all threads
    apart = config.workers > 1
    try:
        with workers:
            for load in loads:
                with storage_errors(where):
                    load.tune(storage, load_study(name, load.name))
                if not apart:
                    load.prove()
                load.close()
            workers.join()
        torch.set_num_threads(threads)
        for load in loads if apart else ():
            load.prove()
            load.close()
    except KeyboardInterrupt:
        return INTERRUPTED
    if len(loads) > 1:
        write_table(folder, config, space, [load.outcome for load in loads], console)
    seconds = time.perf_counter() - began
    console.print(f"{folder} after {seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)
    # a wrong output outranks a missing one
    states = [load.status for load in loads]
    return 1 if 1 in states else max(states)


def _with_stored_batch(config: TuneConfig, name: str, folder: Path) -> TuneConfig:
    """On a resume the batch of the start: the memory free now may suggest another one."""
    if not config.resume or config.batch_size is not None:
        return config
    storage, where = open_storage(config.storage, folder)
    with storage_errors(where):
        stored = stored_identity(storage, name)
    if stored is None:
        return config
    return config.model_copy(update={"batch_size": (stored["config"]["batch_size"],)})


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
