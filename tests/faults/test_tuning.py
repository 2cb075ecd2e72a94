"""Tunings killed or interrupted at writes of their journal: no trial is lost or measured twice."""

import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.support.prepared import Fault, Interpreter
from tests.support.torture import read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

OPTIONS = (
    *("tune", "--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 2),
    *("--held-out", 2, "--max-new-tokens", 12, "--min-tokens", 4, "--batch-size", 2),
    *("--ratios", "0.05,0.3", "--gammas", "1,3", "--repeats", 3),
)
TUNINGS, KILLS = 5, 6


def passed(out: Path) -> list[str]:
    """The entries of the journal that complete a trial; each is whole."""
    entries = [json.loads(line) for line in read(out / "study.journal").splitlines()]
    return [json.dumps(entry) for entry in entries if entry["op_code"] == 6]


def test_tunings(
    interpreter: Interpreter, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    struck: Counter[int] = Counter()
    for seed in range(TUNINGS):
        out, choice = tmp_path / f"tuning-{seed}", random.Random(seed)
        for _ in range(KILLS):
            kept = read(out / "study.journal")
            fault = Fault(
                event=choice.randrange(8, 60),
                number=choice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]),
                torn=choice.choice([None, 0.0, choice.random()]),
            )
            if fault.number == signal.SIGINT:
                fault = Fault(event=fault.event, number=fault.number)
            resume = ("--resume",) if kept else ()
            ended = interpreter.run(*OPTIONS, "--output", out, *resume, cwd=inputs, fault=fault)
            assert ended.status in (0, -9, 130), ended.printed
            struck[ended.status] += 1
            whole = kept[: kept.rfind(b"\n") + 1]
            assert read(out / "study.journal").startswith(whole)
        ended = interpreter.run(*OPTIONS, "--output", out, "--resume", cwd=inputs)
        assert ended.status == 0, ended.printed
        trials = pd.read_csv(out / "trials.csv")
        measured = trials[trials["status"] == "PASSED"]
        assert not measured.duplicated(["step", "kept_ratio", "gamma"]).any()
        assert set(trials["status"]) <= {"PASSED", "WORKER_ENDED"}
        assert len(passed(out)) == len(trials)
    with capsys.disabled():
        sys.stdout.write(f"\n{TUNINGS} tunings: {dict(struck)} by exit status\n")
