"""Hooks for a prepared interpreter: passes that give no sign of life."""

import signal
import time
from typing import Any

from specbench.bench import watchdog
from specbench.methods.vegas import Vegas


def hang() -> None:
    """Vegas's 9th round of drafts never ends."""
    _hang_in(9)


def hang_beyond_reach() -> None:
    """The same, and no signal comes through, as in a wait for the device."""
    watchdog.GRACE_SECONDS = 0.5
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    _hang_in(9)


def _hang_in(number: int) -> None:
    draft, rounds = Vegas.draft, 0

    def slow(self: Vegas, *arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == number:
            time.sleep(600)
        return draft(self, *arguments)

    Vegas.draft = slow  # type: ignore[method-assign]
