"""Ends a pass that gives no sign of life: by an error, or where none can reach it, the process."""

import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from specbench.engine.generate import Progress
from specbench.errors import ArmTimeoutError

GRACE_SECONDS = 10.0
"""Seconds that a pass has to end after it was told to."""

T = TypeVar("T")


class Watchdog:
    """Raises `ArmTimeoutError` in the main thread once the work there is silent for too long.

    Used like a file, around passes whose generators go through `watch` and whose progress goes
    through `listen`. Python's code can be interrupted so; a call that never returns, such as the
    wait for a kernel that hangs, cannot, and then `stuck` is called in a thread of its own.
    Outside the main thread, which alone gets signals, it does nothing.

    Parameters
    ----------
    seconds : float or None
        Without a sign of life: tokens prefilled or decoded, or a request that completes. None
        watches nothing.
    stuck : callable
        Takes the message; what it leaves undone is lost, since it is to end the process.
    """

    def __init__(self, seconds: float | None, stuck: Callable[[str], None]) -> None:
        self.seconds = seconds or 0.0
        self._stuck = stuck
        self._heard: float | None = None  # None while nothing is watched
        self._told = False
        self._closed = False
        self._changed = threading.Condition()
        self._main = threading.main_thread()
        self._active = seconds is not None and threading.current_thread() is self._main
        self._before: Any = None
        self._thread: threading.Thread | None = None

    def listen(self, progress: Progress) -> Progress:
        """`progress`, whose callbacks are signs of life."""

        def heard(then: Callable[[int], None]) -> Callable[[int], None]:
            def call(count: int) -> None:
                if self._heard is not None:
                    self._heard = time.monotonic()
                then(count)

            return call

        return Progress(heard(progress.prefilled), heard(progress.decoded))

    def watch(self, items: Generator[T]) -> Generator[T]:
        """`items`, watched while the next one is made, not while the last one is used.

        Raises
        ------
        ArmTimeoutError
            Nothing was heard for too long; `items` is closed then.
        """
        try:
            while True:
                self._arm()
                try:
                    item = next(items, None)
                finally:
                    self._disarm()
                if item is None:
                    return
                yield item
        finally:
            items.close()

    def __enter__(self) -> Self:
        if self._active:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            self._thread = threading.Thread(target=self._wait, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        signal.signal(signal.SIGALRM, self._before)

    def _arm(self) -> None:
        with self._changed:
            self._heard = time.monotonic()
            self._changed.notify()

    def _disarm(self) -> None:
        self._heard = None
        with self._changed:
            self._told = False
            self._changed.notify()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._told:
            if callable(self._before):  # another's alarm
                self._before(number, frame)
        elif self._heard is not None:
            self._heard = None  # once is enough: what follows is the tidying up
            raise ArmTimeoutError(self._message())

    def _message(self) -> str:
        return f"nothing was decoded for {self.seconds:.0f} s; --timeout allows more"

    def _wait(self) -> None:
        with self._changed:
            while not self._closed:
                if self._heard is None:
                    self._changed.wait()
                elif (left := self._heard + self.seconds - time.monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    self._told = True
                    signal.pthread_kill(self._main.ident or 0, signal.SIGALRM)
                    self._changed.wait_for(lambda: self._closed or not self._told, GRACE_SECONDS)
                    if self._told and not self._closed:
                        break
            else:
                return
        self._stuck(f"{self._message()}, and the pass could not be interrupted")
