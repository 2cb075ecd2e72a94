"""Further processes of this machine on one tuning: a GPU each, or a share of the threads."""

import multiprocessing
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.tune.job import Job
from specbench.tune.measure import EngineMeasure
from specbench.tune.sample import Sample
from specbench.tune.space import Setting, build_space

if TYPE_CHECKING:
    from rich.console import Console

_ENDING_S = 30


class Workers:
    """Starts the processes, and ends them with this one; used like a file.

    Parameters
    ----------
    config : TuneConfig
    job : Job
        What all of them work on.
    name : str
        Of the study.
    folder : Path
        The output folder.
    console : Console

    Raises
    ------
    UsageError
        More workers than GPUs, or than threads.
    """

    def __init__(
        self, config: TuneConfig, job: Job, name: str, folder: Path, console: "Console"
    ) -> None:
        import torch

        self._console = console
        self._processes: list[Any] = []
        self._devices: list[str | None] = [None] * config.workers
        self.threads = config.threads or torch.get_num_threads()
        if job.plan.config.device == "cuda":
            self._devices = list(_gpus(config.workers))
        elif config.workers > self.threads:
            raise UsageError(
                f"--workers {config.workers} share {self.threads} threads: give at most "
                f"{self.threads}, or more --threads"
            )
        else:
            self.threads //= config.workers
        # what was chosen once is not chosen anew with the memory that the others leave
        prompts = {
            "num_prompts": len(job.plan.workloads[0].requests),
            "held_out": len(job.held_out.requests),
            "batch_size": job.plan.config.batch_size,
            "threads": self.threads,
        }
        self._arguments = config.model_copy(update=prompts), name, folder

    def __enter__(self) -> "Workers":
        import torch

        if len(self._devices) > 1:
            torch.set_num_threads(self.threads)
        context = multiprocessing.get_context("spawn")
        for number, device in enumerate(self._devices[1:], start=2):
            process = context.Process(target=_work, args=(*self._arguments, number, device))
            process.start()
            self._processes.append(process)
        return self

    def join(self) -> None:
        """Wait until every worker saw that the studies are done, and say which ones failed."""
        for number, process in enumerate(self._processes, start=2):
            process.join(_ENDING_S)
            if process.exitcode:
                self._console.print(
                    f"worker {number} ended with status {process.exitcode}; the others went on",
                    style="yellow",
                )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            if process.is_alive():
                process.terminate()
            process.join()


def _gpus(count: int) -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, the first one being this process's own."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
    if count > len(visible):
        raise UsageError(f"--workers {count} need a GPU each, but {len(visible)} are visible")
    return visible[:count]


def _work(config: TuneConfig, name: str, folder: Path, number: int, device: str | None) -> None:
    """What a further process does."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    import torch
    from rich.console import Console

    from specbench.bench.backends import EngineHost
    from specbench.tune.job import prepare
    from specbench.tune.storage import open_storage
    from specbench.tune.tuning import Tuning

    if config.threads:
        torch.set_num_threads(config.threads)
    job = prepare(config, build_space(config), Console(quiet=True))
    storage, _ = open_storage(config.storage, folder)
    measure = EngineMeasure(
        EngineHost(job.plan).engine, job.space, job.plan.config, job.plan.workloads[0].requests
    )
    parent = multiprocessing.parent_process()

    def attended(setting: Setting, repeat: int) -> Sample:
        if parent is not None and not parent.is_alive():
            raise KeyboardInterrupt
        return measure(setting, repeat)

    console = Console(width=200)
    try:
        Tuning(job, storage, name, attended, console, prefix=f"[{number}] ").run()
    except KeyboardInterrupt:
        console.print(f"worker {number}: interrupted")
