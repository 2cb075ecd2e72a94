"""A prepared interpreter: runs of the command line that cost no imports, and die when told to.

Run as a program it imports what the command line needs, then forks a process for each line of JSON
on its standard input. That process is a `specbench` of its own: it can be killed or interrupted,
and its limits are its own.
"""

import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = (
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure"),
    *("pandas", "pandas.io.formats.style", "rich.progress", "rich.table", "safetensors", "torch"),
    # a Llama's tokenizer comes with much of the library
    *("transformers.modeling_utils", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.llama.configuration_llama", "transformers.video_utils"),
    *("specbench.cli", "specbench.bench.run", "specbench.bench.sweep"),
    *("specbench.datasets.encoding", "specbench.datasets.prompt_file"),
    *("specbench.engine.loader", "specbench.engine.reference_compute", "specbench.methods.vegas"),
    *("specbench.results.page", "specbench.results.plots.bars", "specbench.train.session"),
    *("specbench.train.prepare", "specbench.methods.longspec.weights"),
)


@dataclass(frozen=True)
class Fault:
    """What happens to a run; by default nothing.

    Attributes
    ----------
    event : int or None
        Number of the write to disk (an fsync or a replaced file, counted from 0) at which the
        process gets a signal.
    number : int
        That signal.
    times : int
        How often.
    torn : float or None
        The share of the last line that is on disk then; None leaves the line whole.
    file_bytes : int or None
        No file can grow beyond this: what a full disk does, without one.
    hooks : tuple of str
        Functions as ``module:name`` that are called first.
    """

    event: int | None = None
    number: int = signal.SIGKILL
    times: int = 1
    torn: float | None = None
    file_bytes: int | None = None
    hooks: tuple[str, ...] = ()


@dataclass
class Ended:
    """How a run ended: its exit status or minus the signal, what it printed, what it had on disk.

    `synced` has the size of each file when the run last waited for it to be on disk, `writes`
    are the files that it waited for or replaced, in order.
    """

    status: int
    printed: str
    synced: dict[str, int] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)


class Interpreter:
    """The prepared interpreter; closed like a file."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.prepared"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready

    def run(
        self,
        *arguments: object,
        cwd: Path,
        fault: Fault = Fault(),
        meanwhile: Callable[[int], None] = lambda pid: None,
    ) -> Ended:
        """Run ``specbench`` with `arguments`; `meanwhile` gets the process while it runs."""
        notes = cwd / "notes"
        notes.mkdir(exist_ok=True)
        for name in ("log", "synced"):
            (notes / name).write_text("")
        order = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "fault": asdict(fault)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        try:
            meanwhile(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:  # until now the process, though it may have ended, keeps its number
            print("wait", file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
        noted = [line.split(" ") for line in (notes / "synced").read_text().splitlines()]
        synced = {name: int(size) for name, size in noted if size}
        return Ended(status, (notes / "log").read_text(), synced, [name for name, _ in noted])

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def kill_after(seconds: float) -> Callable[[int], None]:
    """Kill a run that long after its start, if it still runs."""

    def kill(pid: int) -> None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    return kill


def random_fault(seed: int, events: int, seconds: float) -> dict[str, Any]:
    """Arguments of `Interpreter.run` that kill it at a moment between start and end, or a write.

    Moments lie closer together at the start: most of a short run's time goes into its plots.
    """
    choice = random.Random(seed)
    if choice.random() < 0.5:
        return {"meanwhile": kill_after(seconds * choice.random() ** 2)}
    torn = choice.choice([None, choice.random()])
    return {"fault": Fault(event=choice.randrange(events), torn=torn)}


def _serve() -> None:
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    _say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(**order)
        _say(pid)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        _say(os.waitstatus_to_exitcode(status))


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _run(arguments: list[str], cwd: str, fault: dict[str, Any]) -> None:
    """The forked process: never returns."""
    status = 70
    try:
        os.chdir(cwd)
        log = os.open("notes/log", os.O_WRONLY | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for mine, theirs in ((null, 0), (log, 1), (log, 2)):
            os.dup2(mine, theirs)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _install(Fault(**fault))
        from specbench.cli import main

        main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 71
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _install(fault: Fault) -> None:
    notes = os.open("notes/synced", os.O_WRONLY | os.O_APPEND)
    fsync, replace = os.fsync, os.replace
    lock = threading.Lock()
    count = 0

    def now() -> bool:
        nonlocal count
        with lock:
            count += 1
            return count - 1 == fault.event

    def strike() -> None:
        for _ in range(fault.times):
            os.kill(os.getpid(), fault.number)

    def fsync_or_die(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        size = os.fstat(descriptor).st_size
        if now():
            if fault.torn is not None:
                content = path.read_bytes()
                start = content[:-1].rfind(b"\n") + 1
                os.truncate(path, start + int(fault.torn * (size - start)))
            strike()
        fsync(descriptor)
        os.write(notes, f"{path.name} {size}\n".encode())

    def replace_or_die(source: Any, target: Any) -> None:
        if now():
            strike()
        replace(source, target)
        os.write(notes, f"{Path(target).name} \n".encode())

    os.fsync, os.replace = fsync_or_die, replace_or_die
    if fault.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.file_bytes, resource.RLIM_INFINITY))
    for hook in fault.hooks:
        module, _, name = hook.partition(":")
        getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    _serve()
