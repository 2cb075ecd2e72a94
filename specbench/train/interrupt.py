"""Ctrl-C during a training: the step under way ends, and a checkpoint follows."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """Ctrl-C as a wish to stop after the step; the second one is a KeyboardInterrupt as ever."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)
