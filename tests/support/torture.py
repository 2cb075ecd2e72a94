"""A run beside an undisturbed one: what it may lose, and that it ends the same."""

import json
import time
from pathlib import Path
from typing import Any

from specbench.results.reading import read_folder
from tests.support.prepared import Ended, Interpreter, random_fault

LOGS = ("requests.jsonl", "arms.jsonl", "lossless.jsonl", "scores.jsonl", "overhead.jsonl")
TABLES = ("acceptance.csv", "lossless.csv", "scores.csv")


class Torture:
    """Runs with the same options that meet faults, are resumed, and are compared with a whole one.

    Parameters
    ----------
    interpreter : Interpreter
    inputs : Path
        Where the options' files are.
    folder : Path
        For the runs.
    options : object
        Of ``specbench run``, without the output.
    """

    def __init__(
        self, interpreter: Interpreter, inputs: Path, folder: Path, *options: object
    ) -> None:
        self.interpreter = interpreter
        self.inputs = inputs
        self.folder = folder
        self.options = options
        self.whole = folder / "whole"
        began = time.monotonic()
        ended = self.call(self.whole)
        assert ended.status == 0, ended.printed
        self.events = len(ended.writes)
        self.seconds = time.monotonic() - began

    def call(self, out: Path, *more: object, **fault: Any) -> Ended:
        """A process on the run in `out`, resumed where there is one."""
        resume = ("--resume",) if (out / "run.json").is_file() else ()
        return self.interpreter.run(
            "run", *self.options, "--output", out, *resume, *more, cwd=self.inputs, **fault
        )

    def disturb(self, out: Path, *more: object, **fault: Any) -> Ended:
        """`call`, and whatever became of it no record is lost or there twice."""
        kept = {name: read(out / name) for name in LOGS}
        ended = self.call(out, *more, **fault)
        if (out / "run.json").is_file():
            read_folder(out)  # refuses what is there twice
        for name, before in kept.items():
            now = read(out / name)
            assert now.startswith(before[: before.rfind(b"\n") + 1])
            assert len(now) >= ended.synced.get(name, 0)
        return ended

    def finish(self, out: Path) -> None:
        """Resume to the end, which must be that of the undisturbed run."""
        ended = self.disturb(out)
        assert ended.status == 0, ended.printed
        assert content(out) == content(self.whole)
        assert {f.name for f in out.iterdir()} == {f.name for f in self.whole.iterdir()}
        for name in TABLES:
            assert read(out / name) == read(self.whole / name)

    def kill(self, name: str, faults: list[dict[str, Any]]) -> list[str]:
        """Kill by each of `faults`, then resume to the end; the phases in which it was killed."""
        out = self.folder / name
        phases = []
        for fault in faults:
            ended = self.disturb(out, **fault)
            if ended.status == 0:
                break
            assert ended.status == -9, ended.printed
            phases.append(self.phase(out))
        self.finish(out)
        return phases

    def random_faults(self, seed: int, count: int) -> list[dict[str, Any]]:
        """Kills at moments and writes anywhere in the run."""
        return [random_fault(97 * seed + i, self.events, self.seconds) for i in range(count)]

    def phase(self, out: Path) -> str:
        """What the run in `out` was doing when it was killed."""
        if not (out / "run.json").is_file():
            return "start"
        for name, what in (("arms.jsonl", "decoding"), ("lossless.jsonl", "verdicts")):
            if read(out / name).count(b"\n") < read(self.whole / name).count(b"\n"):
                return what
        return "reports"


def read(file: Path) -> bytes:
    """What `file` holds; nothing where there is none."""
    return file.read_bytes() if file.is_file() else b""


def content(folder: Path) -> dict[str, Any]:
    """Records without their times, whatever their order; of a pass, how it ended last."""
    found: dict[str, Any] = {}
    for name in LOGS[:4]:
        records: dict[str, Any] = {}
        for line in read(folder / name).splitlines():
            record = json.loads(line)
            key = str([record[part] for part in ("arm", "dataset", "repeat")]) + str(
                record.get("index")
            )
            for measured in ("times", "peak_memory_bytes", "served"):
                record.pop(measured, None)
            records[key] = record
        found[name] = records
    return found
