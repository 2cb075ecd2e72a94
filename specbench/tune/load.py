"""One load of a tuning: its steps, then its choice on prompts held out, and their files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.backends import EngineHost, Weights
from specbench.bench.environment import describe
from specbench.bench.run import INTERRUPTED
from specbench.results.report import write_file
from specbench.tune.final import (
    Comparison,
    compare,
    final_arms,
    final_folder,
    run_final,
    throughput,
)
from specbench.tune.job import Job
from specbench.tune.measure import EngineMeasure
from specbench.tune.page import write_page
from specbench.tune.report import print_choice, write_comparison, write_tuned
from specbench.tune.space import Setting
from specbench.tune.trials import NothingMeasuredError
from specbench.tune.tuning import Tuning

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from rich.console import Console

FAILED = 3
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Outcome:
    """What a load led to.

    Attributes
    ----------
    name : str
    batch : int
    context_len : int
        The longest prompt that was asked for.
    context : int
        Mean length of the prompts in tokens.
    setting : Setting or None
        The choice; None where there is none.
    options : dict
        The choice as options of a run.
    throughput : float or None
        Decode tokens/s on the held-out prompts.
    comparisons : list of Comparison
    final : Path
        Folder of the final run.
    """

    name: str
    batch: int
    context_len: int
    context: int
    setting: Setting | None
    options: dict[str, Any]
    throughput: float | None
    comparisons: list[Comparison]
    final: Path

    def over(self, kind: str) -> Comparison | None:
        """The choice's throughput over that of another arm, by the end of its name."""
        found = (c for c in self.comparisons if c.over.endswith(kind) and c.arm.endswith("-tuned"))
        return next(found, None)


class LoadTuning:
    """Tunes one load.

    Parameters
    ----------
    name : str
        Of the load; empty for an only one.
    job : Job
    folder : Path
    weights : Weights
        Of the model, which all loads share.
    console : Console
    argv : sequence of str
    alone : bool
        Without a choice there is nothing else: an error. Otherwise the other loads go on.

    Attributes
    ----------
    status : int
        As `run_tuning` returns it.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        folder: Path,
        weights: Weights,
        console: "Console",
        argv: Sequence[str],
        alone: bool,
    ) -> None:
        self.name = name
        self.job = job
        self.folder = folder
        self.status = 0
        self._console = console
        self._argv = argv
        self._alone = alone
        self._host = EngineHost(job.plan, weights)
        self._tuning: Tuning | None = None
        self._proof: tuple[float | None, list[Comparison]] = None, []

    def tune(self, storage: "BaseStorage", study: str) -> None:
        """Run the steps of the studies called `study`, or what is missing of them.

        Raises
        ------
        NothingMeasuredError
            A step has no choice, and there is no other load.
        """
        job = self.job
        if self.name:
            self._say(f"load {self.name}")
        self.folder.mkdir(parents=True, exist_ok=True)
        record = json.dumps(describe(self._argv), indent=2)
        write_file(self.folder / ENVIRONMENT, f"{record}\n".encode())
        measure = EngineMeasure(
            self._host, job.space, job.plan.config, job.plan.workloads[0].requests
        )
        tuning = Tuning(job, storage, study, measure, self._console)
        try:
            tuning.run()
        except NothingMeasuredError as error:
            if self._alone:
                raise
            self.status = FAILED
            self._say(f"load {self.name}: no choice: {error}")
        else:
            self._tuning = tuning
        finally:
            tuning.write(self.folder)
            measure.close()

    def prove(self) -> None:
        """Run the choice beside other settings on the held-out prompts, and write what was found.

        Raises
        ------
        KeyboardInterrupt
            The run was interrupted; its records are kept.
        """
        if self._tuning is None:
            return
        job, tuning = self.job, self._tuning
        space, chosen, grid_best = job.space, tuning.choice, tuning.grid_best
        write_tuned(self.folder, job.plan.config, space, chosen)
        arms = final_arms(job.plan.config, space, chosen, grid_best)
        final = self._final
        self.status = run_final(
            job.plan, self._host, job.held_out, arms, final, console=self._console, argv=self._argv
        )
        if self.status == INTERRUPTED:
            raise KeyboardInterrupt
        comparisons = compare(final, space, chosen, grid_best)
        self._proof = throughput(final, space), comparisons
        write_comparison(self.folder, comparisons)
        print_choice(self._console, tuning, comparisons)
        write_page(self.folder, final, tuning, comparisons)

    def close(self) -> None:
        """Free the KV cache, before that of the next load."""
        self._host.close()

    @property
    def outcome(self) -> Outcome:
        """For the table of all loads."""
        setting = None if self._tuning is None else self._tuning.choice
        measured, comparisons = self._proof
        return Outcome(
            name=self.name,
            batch=self.job.plan.rows,
            context_len=self.job.plan.workloads[0].info.context_len,
            context=self.job.context,
            setting=setting,
            options={} if setting is None else self.job.space.options(setting),
            throughput=measured,
            comparisons=comparisons,
            final=self._final,
        )

    @property
    def _final(self) -> Path:
        return final_folder(self.folder, self.job.rules.exhaustive)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
