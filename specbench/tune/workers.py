"""Further processes of this machine on one tuning: a GPU each, or a share of the threads."""

import multiprocessing
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.tune.measure import EngineMeasure
from specbench.tune.sample import Measure, Sample
from specbench.tune.space import Setting, build_space

if TYPE_CHECKING:
    from rich.console import Console

_ENDING_S = 30


class Workers:
    """Starts the processes, and ends them with this one; used like a file.

    Parameters
    ----------
    config : TuneConfig
    parts : dict of str to TuneConfig
        The loads, one after the other, each with nothing left open, by the names of their studies.
    device : str
    folder : Path
        The output folder.
    console : Console

    Raises
    ------
    UsageError
        More workers than GPUs, or than threads.
    """

    def __init__(
        self,
        config: TuneConfig,
        parts: dict[str, TuneConfig],
        device: str,
        folder: Path,
        console: "Console",
    ) -> None:
        import torch

        self._console = console
        self._processes: list[Any] = []
        self._devices: list[str | None] = [None] * config.workers
        self.threads = config.threads or torch.get_num_threads()
        if device == "cuda":
            self._devices = list(_gpus(config.workers))
        elif config.workers > self.threads:
            raise UsageError(
                f"--workers {config.workers} share {self.threads} threads: give at most "
                f"{self.threads}, or more --threads"
            )
        else:
            self.threads //= config.workers
        self._parts = {
            name: part.model_copy(update={"threads": self.threads}) for name, part in parts.items()
        }
        self._folder = folder

    def __enter__(self) -> "Workers":
        import torch

        if len(self._devices) > 1:
            torch.set_num_threads(self.threads)
        context = multiprocessing.get_context("spawn")
        for number, device in enumerate(self._devices[1:], start=2):
            process = context.Process(
                target=_work, args=(self._parts, self._folder, number, device)
            )
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


def _work(parts: dict[str, TuneConfig], folder: Path, number: int, device: str | None) -> None:
    """What a further process does."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    import torch
    from rich.console import Console

    from specbench.bench.backends import EngineHost, Weights
    from specbench.tune.job import largest, prepare
    from specbench.tune.storage import open_storage
    from specbench.tune.trials import NothingMeasuredError
    from specbench.tune.tuning import Tuning

    first = next(iter(parts.values()))
    if first.threads:
        torch.set_num_threads(first.threads)
    quiet, console = Console(quiet=True), Console(width=200)
    space = build_space(first)
    jobs = {name: prepare(part, space, quiet) for name, part in parts.items()}
    storage, _ = open_storage(first.storage, folder)
    weights = Weights(largest(jobs.values()).plan)
    parent = multiprocessing.parent_process()
    for name, job in jobs.items():
        host = EngineHost(job.plan, weights)
        measure = EngineMeasure(host, job.space, job.plan.config, job.plan.workloads[0].requests)

        def attended(setting: Setting, repeat: int, measure: Measure = measure) -> Sample:
            if parent is not None and not parent.is_alive():
                raise KeyboardInterrupt
            return measure(setting, repeat)

        try:
            Tuning(job, storage, name, attended, console, prefix=f"[{number}] ").run()
        except NothingMeasuredError as error:
            console.print(f"worker {number}: {error}", markup=False, highlight=False)
        except KeyboardInterrupt:
            console.print(f"worker {number}: interrupted")
            return
        measure.close()
        host.close()
