"""A model's chat template, rendered in a process with bounds of its own.

Templates come with models from anywhere. transformers renders them in jinja's sandbox, which keeps
them from Python's objects but not from looping for ever or from filling the memory.
"""

import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from specbench.datasets.base import Message
from specbench.errors import DataError

SECONDS = 20.0
BYTES = 2**30
LONGEST_TEMPLATE = 2**20
_MOST_ADDED = 2**22
_MOST_REPEATED = 4
_REASON = 300


def template_of(tokenizer: Any) -> str | None:
    """The tokenizer's chat template; None without one.

    Raises
    ------
    DataError
        It is no text, or longer than any template.
    """
    if not tokenizer.chat_template:
        return None
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise DataError(f"the model's chat template cannot be used: {_short(error)}") from error
    if not isinstance(template, str):
        kind = type(template).__name__
        raise DataError(f"the model's chat template must be a text, not {kind}")
    if len(template) > LONGEST_TEMPLATE:
        raise DataError(f"the model's chat template has {len(template):,} characters")
    return template


class TemplateProcess:
    """Renders chats with one tokenizer's template and one set of options; closed like a file.

    A fork, which has the tokenizer already; it is started at the first chat, never touches a
    device, and may take `SECONDS` for a chat and `BYTES` beside what it starts with.
    """

    def __init__(self, tokenizer: Any, options: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._process: ForkProcess | None = None
        self._connection: Connection | None = None

    def render(self, messages: list[Message], item_id: str) -> str:
        """The text of a chat, up to where the model's answer begins.

        Raises
        ------
        DataError
            The template refuses the chat, fails, takes too long or too much memory, or its text is
            far longer than the chat.
        """
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None
        try:
            connection.send(messages)
            if not connection.poll(SECONDS):
                raise _failure(item_id, f"gave no text within {SECONDS:.0f} s")
            kind, text = connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.close()
            raise _failure(
                item_id, "ended its process; it may have taken too much memory"
            ) from None
        except BaseException:
            self.close()
            raise
        if kind != "text":
            raise _failure(item_id, text)
        given = sum(len(message["content"]) for message in messages)
        if len(text) > _MOST_REPEATED * given + _MOST_ADDED:
            raise _failure(item_id, f"makes {len(text):,} characters of {given:,}")
        return str(text)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def __enter__(self) -> "TemplateProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self._connection, self._tokenizer, self._options)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()


def _serve(
    connection: Connection, parent: Connection, tokenizer: Any, options: dict[str, Any]
) -> None:
    """The process: chats in, texts out, until the other end is closed."""
    parent.close()  # else its end would never be seen
    _bound_memory()
    while True:
        try:
            messages = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send(_rendered(tokenizer, messages, options))
        except MemoryError:
            connection.send(("error", f"takes more than {BYTES / 2**20:.0f} MiB of memory"))


def _bound_memory() -> None:
    """No more than `BYTES` beside what is mapped; where the system says what that is."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        most = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _rendered(tokenizer: Any, messages: list[Message], options: dict[str, Any]) -> tuple[str, str]:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
        text.encode()
    except MemoryError:
        raise
    except jinja2.TemplateError as error:
        return "error", f"refuses it: {_short(error)}"
    # a template is a program, and may fail as any does
    except Exception as error:
        return "error", f"fails: {type(error).__name__}: {_short(error)}"
    return "text", text


def _failure(item_id: str, what: str) -> DataError:
    return DataError(f"item {item_id}: the chat template {what}")


def _short(error: Exception) -> str:
    text = " ".join(str(error)[: 2 * _REASON].split())
    text = text.encode(errors="replace").decode()
    return text if len(text) <= _REASON else f"{text[:_REASON]}…"
