"""One view of a whole plan's progress: passes, and the tokens of the one that runs."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from specbench.engine.generate import Progress, Request

if TYPE_CHECKING:
    from rich.console import Console


class PlanProgress:
    """Bars for a plan, shown on a terminal while it runs; opened and closed like a file.

    Parameters
    ----------
    console : Console
    passes : int
        Of the whole plan, those that are on record included.
    """

    def __init__(self, console: "Console", passes: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self.console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._plan = self._bars.add_task("passes of the plan", total=passes)
        self._prefill = self._bars.add_task("prefill tokens", total=None, visible=False)
        self._decode = self._bars.add_task("decode tokens", total=None, visible=False)

    def start(self, title: str, requests: Sequence[Request]) -> Progress:
        """A pass begins; what it returns moves the bars of its tokens."""
        tokens = {
            self._prefill: sum(len(request.token_ids) for request in requests),
            self._decode: sum(request.max_new_tokens for request in requests),
        }
        for task, total in tokens.items():
            what = "prefill" if task == self._prefill else "decode"
            description = f"{title} {what} tokens"
            self._bars.reset(task, total=total, visible=True, description=description)
        return Progress(
            prefilled=lambda count: self._bars.advance(self._prefill, count),
            decoded=lambda count: self._bars.advance(self._decode, count),
        )

    def ended(self, failure: str | None = None) -> None:
        """A pass ended, or needs no run; a failure is said at once, above the bars."""
        self._bars.advance(self._plan)
        if failure:
            self.console.print(failure, style="red", markup=False, highlight=False)

    def __enter__(self) -> "PlanProgress":
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
