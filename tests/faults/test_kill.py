"""Runs killed at random moments: no record lost but those in flight, none twice, the same end."""

import itertools
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.prepared import Fault, Interpreter, kill_after
from tests.support.torture import Torture, read

SHAPES = {
    "greedy": ("--batch-size", 1),
    "sampled batch": ("--batch-size", 3, "--temperature", 0.9, "--top-k", 20),
    "three arms": ("--batch-size", 2, "--method", "vegas,lookup"),
}


def test_killed_at_moments_of_the_clock(torture: Torture) -> None:
    """A busy machine may let one of them end: what comes after it finds nothing to do."""
    moments = [torture.seconds * (0.1 + 0.07 * i) for i in range(6)]
    assert torture.kill("moments", [{"meanwhile": kill_after(moment)} for moment in moments])


def test_killed_while_records_and_reports_are_written(torture: Torture) -> None:
    """The write of number 3 is a request's, so that each process gets a little further."""
    faults = [{"fault": Fault(event=3, torn=torn)} for torn in (None, 0.0, 0.5)]
    faults.append({"fault": Fault(event=torture.events - 11)})
    assert torture.kill("writes", faults) == ["decoding"] * 3 + ["reports"]


def options(shape: str) -> tuple[object, ...]:
    return (
        *("--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 6),
        *("--max-new-tokens", 24, "--min-tokens", 4, "--gamma", 3, "--repeats", 2),
        *SHAPES[shape],
    )


@pytest.fixture(scope="module")
def sampled(
    interpreter: Interpreter, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Torture:
    folder = tmp_path_factory.mktemp("sampled")
    return Torture(interpreter, inputs, folder, *options("sampled batch"))


def test_only_the_same_run_goes_on_and_a_finished_one_stays(sampled: Torture) -> None:
    out = sampled.folder / "killed"
    assert sampled.disturb(out, fault=Fault(event=20, torn=0.5)).status == -9
    kept = read(out / "requests.jsonl")
    assert kept.count(b"\n") > 12, "in the middle of the second arm's first pass"
    refused = sampled.interpreter.run("run", *sampled.options, "--output", out, cwd=sampled.inputs)
    assert refused.status == 2
    assert "continue a run with --resume, or give another --output" in refused.printed
    changed = sampled.call(out, "--gamma", 2)
    assert changed.status == 2
    assert "gamma: 3 there, 2 now" in changed.printed
    assert read(out / "requests.jsonl") == kept
    sampled.finish(out)
    done = read(out / "requests.jsonl")
    sampled.finish(out)
    assert read(out / "requests.jsonl") == done


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_runs(
    interpreter: Interpreter,
    inputs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shapes = [Torture(interpreter, inputs, tmp_path / name, *options(name)) for name in SHAPES]
    runs = int(os.environ.get("SPECBENCH_KILLED_RUNS", "100"))
    phases: Counter[str] = Counter()
    for seed, shape in zip(range(runs), itertools.cycle(shapes), strict=False):
        faults = shape.random_faults(seed, random.Random(seed).randint(1, 3))
        phases.update(shape.kill(f"run-{seed}", faults))
        shutil.rmtree(shape.folder / f"run-{seed}")
    with capsys.disabled():
        sys.stdout.write(f"\n{runs} runs, {phases.total()} kills: {dict(phases)}\n")
    assert set(phases) == {"start", "decoding", "verdicts", "reports"}
