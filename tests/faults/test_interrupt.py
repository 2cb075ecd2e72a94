"""Ctrl-C: once ends a run cleanly with a report of what there is, twice at once."""

import os
import signal
import time
from collections.abc import Callable

import pandas as pd

from tests.support.prepared import Fault
from tests.support.torture import Torture, read

INTERRUPTED = 130


def at(event: int) -> Fault:
    return Fault(event=event, number=signal.SIGINT)


def test_once_reports_what_there_is_and_resume_goes_on(torture: Torture) -> None:
    out = torture.folder / "once"
    ended = torture.disturb(out, fault=at(0))  # while run.json is written
    assert ended.status == INTERRUPTED
    assert not (out / "run.json").exists()
    ended = torture.disturb(out, fault=at(7))  # while a request of the second arm is
    assert ended.status == INTERRUPTED
    assert "specbench: interrupted; --resume continues a run" in ended.printed
    assert "Traceback" not in ended.printed
    assert (out / "report.html").is_file()
    frame = pd.read_csv(out / "throughput.csv").set_index("arm")
    assert frame.loc[["autoregressive", "vegas"], "status"].isna().all()
    assert "unfinished" in ended.printed
    torture.finish(out)


def interrupts(*waits: Callable[[], bool]) -> Callable[[int], None]:
    """Ctrl-C as soon as each of `waits` is true; after the last the process has a second."""

    def meanwhile(pid: int) -> None:
        for wait in waits:
            deadline = time.monotonic() + 60
            while not wait():
                assert time.monotonic() < deadline
                time.sleep(0.002)
            os.kill(pid, signal.SIGINT)

    return meanwhile


def test_twice_ends_at_once(torture: Torture) -> None:
    out = torture.folder / "twice"
    requests, log = out / "requests.jsonl", torture.inputs / "notes" / "log"
    waits = (lambda: read(requests).count(b"\n") >= 3, lambda: b"Ctrl-C again" in read(log))
    ended = torture.disturb(out, meanwhile=interrupts(*waits))
    assert ended.status == INTERRUPTED
    assert not (out / "report.html").exists(), "the report was not waited for"
    torture.finish(out)
