"""Who runs a trial, and whether that process still lives."""

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

SILENT_S = 900.0
"""Seconds without a sign of life after which a process of another machine counts as ended."""


class Worker:
    """This process, as trials name it."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.started = _start_ticks(self.pid)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"host": self.host, "pid": self.pid, "started": self.started}

    def sees_alive(
        self, other: dict[str, Any] | None, beat: float | None, began: datetime | None
    ) -> bool:
        """Whether a running trial still has its worker.

        On this machine its process decides. Elsewhere, or before the trial names a worker, the
        last sign of life may be at most `SILENT_S` old.

        Parameters
        ----------
        other : dict or None
            What the worker's `describe` said.
        beat : float or None
            Its last sign of life, in seconds since the epoch.
        began : datetime or None
            The trial's start.
        """
        if other and other["host"] == self.host:
            return _start_ticks(other["pid"]) == other["started"] is not None
        seen = beat or (began.timestamp() if began else 0.0)
        return time.time() - seen < SILENT_S


def _start_ticks(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since boot; None without it.

    It tells a process from a later one with the same id. A zombie counts as ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
