"""The process that vLLM runs in: started, spoken to in lines of JSON, and always ended."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from specbench.bench.redact import hide_secrets
from specbench.errors import ArmTimeoutError, ContextTooLongError, OutOfMemoryError, SpecbenchError
from specbench.methods.vllm.events import LONGEST_LINE, parse_event

WORKER = Path(__file__).with_name("worker.py")
CLOSE_SECONDS = 25.0
_POLL_SECONDS = 1.0
_LOG_BYTES = 64 * 1024

# An error as Python prints it last, behind whatever vLLM's logger puts before it.
_ERROR_LINE = re.compile(r"(?:^|[\s\]])((?:\w+\.)*[A-Z]\w*(?:Error|Exception)): (\S.*)$")
# Errors that only say that another error is the cause.
_HOLLOW = re.compile(
    r"engine core initialization failed|EngineDeadError|EngineCore encountered|root cause|"
    r"worker initialization failed|cancelled",
    re.I,
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|No available memory for the cache|"
    r"Free memory on device|larger than the available KV cache|Available memory on node",
    re.I,
)
_TOO_LONG = re.compile(r"greater than the derived max_model_len|longer than the maximum model")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend")


class VllmError(SpecbenchError):
    """vLLM, or the process that it runs in, failed."""


class VllmProcess:
    """A worker in vLLM's interpreter, in a session of its own.

    Parameters
    ----------
    python : str
        The interpreter.
    log : Path
        Where its output goes, appended.
    environment : mapping
        Variables beside this process's own.
    timeout : float
        Seconds without a sign of life after which it is given up.

    Raises
    ------
    VllmError
        The interpreter cannot be started.
    """

    def __init__(
        self, python: str, log: Path, environment: Mapping[str, str], timeout: float
    ) -> None:
        self.timeout = timeout
        self.log = log
        self._buffer = b""
        commands, ours = os.pipe()
        self._events, events = os.pipe()
        try:
            with log.open("ab") as output:
                self._log_start = output.tell()
                self._process = subprocess.Popen(
                    [python, str(WORKER), str(commands), str(events)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    pass_fds=(commands, events),
                    start_new_session=True,  # Ctrl-C is for this process, which ends that one
                )
        except OSError as error:
            os.close(ours)
            os.close(self._events)
            raise VllmError(f"cannot start {python}: {error.strerror or error}") from error
        finally:
            os.close(commands)
            os.close(events)
        self._commands: IO[str] = os.fdopen(ours, "w", encoding="utf-8")

    @property
    def pid(self) -> int:
        """Of the worker, which leads the session of all of vLLM's processes."""
        return self._process.pid

    def ask(self, op: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Send a command and yield the events it brings; the last one is ``done``.

        Raises
        ------
        VllmError, OutOfMemoryError, ContextTooLongError
            vLLM refused, failed or died, with its own last words.
        ArmTimeoutError
            No event for `timeout` seconds.
        """
        try:
            print(json.dumps({"op": op, **fields}), file=self._commands, flush=True)
        except BrokenPipeError:
            raise self._failure(f"vLLM's process ended ({self._status()})") from None
        while True:
            event = self._next()
            if event["event"] == "error":
                message = event["message"].strip() or event["kind"]
                raise self._failure(message, refused=event["kind"] == "RefusedError")
            yield event
            if event["event"] == "done":
                return

    def attention_backend(self) -> str | None:
        """What vLLM's log says it chose; None where it does not say."""
        found = _BACKEND.findall(self._log_text())
        return found[-1] if found else None

    def close(self) -> None:
        """End vLLM and wait until none of its processes is left."""
        try:
            if not self._commands.closed:
                with contextlib.suppress(BrokenPipeError):
                    self._commands.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(CLOSE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            if self._events >= 0:
                os.close(self._events)
                self._events = -1
            self._hide_secrets()

    def _hide_secrets(self) -> None:
        """Take the secrets out of the log: vLLM prints its engine arguments."""
        with contextlib.suppress(OSError):
            text = self.log.read_text(encoding="utf-8", errors="surrogateescape")
            hidden = hide_secrets(text)
            if hidden != text:
                self.log.write_text(hidden, encoding="utf-8", errors="surrogateescape")

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self._buffer:
            ended = self._process.poll() is not None
            if select.select([self._events], [], [], 0 if ended else _POLL_SECONDS)[0]:
                chunk = os.read(self._events, 1 << 20)
                self._buffer += chunk
                if len(self._buffer) > LONGEST_LINE:
                    raise VllmError(f"vLLM's process sent a line of over {LONGEST_LINE:,} bytes")
                if chunk:
                    continue
                ended = True
            if ended:
                raise self._failure(f"vLLM's process ended ({self._status()})")
            if time.monotonic() > deadline:
                raise ArmTimeoutError(
                    f"vLLM gave no sign of life for {self.timeout:.0f} s: {self._last_words()}; "
                    "--vllm-timeout allows more"
                )
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return parse_event(line)
        except ValueError as error:
            raise VllmError(
                f"vLLM's process sent a line that is no event: {error} (whole log: {self.log.name})"
            ) from error

    def _status(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_SECONDS)
        code = self._process.returncode
        if code is None:
            return "it closed its end"
        if code == -signal.SIGKILL:
            return "signal SIGKILL, as the system sends it where memory is short"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"

    def _failure(self, message: str, refused: bool = False) -> SpecbenchError:
        """The error of the class that `message`, or the cause that the log has, tells of."""
        message = message.split("\n")[0] if refused else _essence(message)
        if not refused and (_HOLLOW.search(message) or message.startswith("vLLM's process ended")):
            words = self._last_words()
            message = f"{message}: {words}" if words else message
        text = f"{message} (whole log: {self.log.name})"
        if _OUT_OF_MEMORY.search(text):
            return OutOfMemoryError(text)
        if _TOO_LONG.search(text):
            return ContextTooLongError(text)
        return VllmError(text)

    def _last_words(self) -> str:
        """The last error in the log that names a cause, else its last line."""
        lines = [line.rstrip() for line in self._log_text().splitlines() if line.strip()]
        for line in reversed(lines):
            match = _ERROR_LINE.search(line)
            if match and not _HOLLOW.search(line):
                return f"{match[1].rpartition('.')[2]}: {match[2]}"
        return lines[-1] if lines else "it wrote no log"

    def _log_text(self) -> str:
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_BYTES))
            return log.read().decode(errors="replace")


def interpreter(given: str | None) -> str:
    """vLLM's interpreter: the one given, else this one."""
    return given or sys.executable


def _essence(message: str) -> str:
    """The line of a message that says the most: pydantic and torch put it second."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        return lines[1]
    return lines[0] if lines else "no message"
