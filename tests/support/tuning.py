"""Tunings without a model, and of a tiny one by the command line in this process."""

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from rich.console import Console

from specbench.cli import main
from specbench.tune.sample import Measure
from specbench.tune.space import Space
from specbench.tune.trials import Rules
from specbench.tune.tuning import Tuning

RULES = Rules("throughput", 3, None)


class Tuned(Tuning):
    """A tuning of a synthetic measure, and what it printed."""

    def __init__(
        self,
        measure: Measure,
        space: Space,
        storage: Any = None,
        rules: Rules = RULES,
        terminal: bool = False,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.storage = storage or optuna.storages.InMemoryStorage()
        self.text = io.StringIO()
        job: Any = SimpleNamespace(space=space, rules=rules, identity={"space": "synthetic"})
        console = Console(file=self.text, width=200, force_terminal=terminal)
        super().__init__(job, self.storage, "test", measure, console)


def tune(measure: Measure, space: Space, storage: Any = None, rules: Rules = RULES) -> Tuned:
    """Run the three steps."""
    tuned = Tuned(measure, space, storage, rules)
    tuned.run()
    return tuned


@dataclass(frozen=True)
class Called:
    """How a call of the command line ended."""

    status: int
    out: str
    err: str


def call(*arguments: object, cwd: Path) -> Called:
    """The command line in this process, which spares starting another, in the folder `cwd`."""
    import torch

    out, err = io.StringIO(), io.StringIO()
    threads = torch.get_num_threads()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    torch.set_num_threads(threads)  # `--threads` sets those of the process
    assert isinstance(ended.value.code, int)
    return Called(ended.value.code, out.getvalue(), err.getvalue())


def leave_out_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports and tunings draw nothing: most of what a small one takes."""
    monkeypatch.setattr("specbench.results.plots.draw_plots", lambda *_: {})
    monkeypatch.setattr("specbench.tune.tuning.draw_curves", lambda *_: {})
