"""Where an iteration's time goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Phase = Literal["draft", "verify", "selection", "sampling"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "selection", "sampling")


@dataclass(frozen=True)
class Mark:
    """A phase begins or ends here, in the order of launches."""

    phase: Phase
    begins: bool


class Phases:
    """Timers around the parts of an iteration.

    A part that runs inside another (score collection inside the verification's attention) is
    counted once, as its own. On a device that works asynchronously the timers would measure
    launches: there they are disabled. For a profiler's trace, `mark` can be set: what launches a
    kernel that is found again in it; `marks` then holds what each of them stands for.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._inner = 0.0
        self.mark: Callable[[], None] | None = None
        self.marks: list[Mark] = []

    def split(self) -> list[float] | None:
        """Seconds of each of `PHASES` in this iteration; None where the timers are disabled."""
        return [self.seconds[phase] for phase in PHASES] if self.enabled else None

    def reset(self) -> None:
        """Start a new iteration."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._inner = 0.0

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Add the seconds spent inside to `phase`."""
        if self.mark is not None:
            self._mark(phase, True)
            yield
            self._mark(phase, False)
            return
        if not self.enabled:
            yield
            return
        outer, self._inner = self._inner, 0.0
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] += spent - self._inner
            self._inner = outer + spent

    def _mark(self, phase: Phase, begins: bool) -> None:
        assert self.mark is not None
        self.marks.append(Mark(phase, begins))
        self.mark()
