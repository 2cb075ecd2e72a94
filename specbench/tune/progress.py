"""Bars of a tuning: the step with its best so far, and the passes of the trial that runs."""

from types import TracebackType
from typing import TYPE_CHECKING

from specbench.tune.sample import Measure, Sample
from specbench.tune.space import Setting

if TYPE_CHECKING:
    from rich.console import Console


class StepProgress:
    """Shown on a terminal while a tuning runs; opened and closed like a file.

    Parameters
    ----------
    console : Console
    """

    def __init__(self, console: "Console") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[best]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._step = self._bars.add_task("", total=None, visible=False, best="")
        self._trial = self._bars.add_task("", total=None, visible=False, best="")

    def step(self, number: int, title: str, most: int, done: int) -> None:
        """A step begins, of which `done` trials of about `most` are on record."""
        self._bars.reset(
            self._step,
            total=most,
            completed=done,
            visible=True,
            description=f"step {number}  {title}",
            best="",
        )

    def trial(self, title: str, passes: int) -> None:
        """A trial of at most `passes` begins."""
        self._bars.reset(self._trial, total=passes, visible=True, description=f"trial  {title}")

    def counted(self, measure: Measure) -> Measure:
        """`measure`, each pass of which moves the trial's bar."""

        def count(setting: Setting, repeat: int) -> Sample:
            sample = measure(setting, repeat)
            self._bars.advance(self._trial)
            return sample

        return count

    def ended(self, best: str | None) -> None:
        """A trial ended; `best` is the best setting so far and its value."""
        self._bars.update(self._trial, visible=False)
        self._bars.update(self._step, advance=1, best=f"best {best}" if best else "")

    def __enter__(self) -> "StepProgress":
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
