"""A training that is killed while it writes, or interrupted, takes the steps of a whole one."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from specbench.train.curves import read_curve
from tests.support.prepared import Ended, Fault, Interpreter
from tests.train.toy import text_folder

OPTIONS = (
    *("train", "longspec", "--model", "model", "--data", "text", "--device", "cpu"),
    *("--short-len", 16, "--short-batch", 4, "--short-steps", 16, "--short-lr", 0.01),
    *("--long-len", 32, "--long-batch", 2, "--long-steps", 4, "--depth", 3, "--window", 8),
    *("--eval-every", 8, "--eval-tokens", 64, "--save-every", 5, "--dtype", "float32"),
)


class Training:
    """Parts of a training, and an undisturbed one."""

    def __init__(self, interpreter: Interpreter, inputs: Path, folder: Path) -> None:
        self.interpreter, self.inputs, self.folder = interpreter, inputs, folder
        self.whole = folder / "whole"
        ended = self.part(self.whole)
        assert ended.status == 0, ended.printed
        self.writes = ended.writes

    def part(self, out: Path, **fault: Any) -> Ended:
        resume = ("--resume",) if (out / "train.json").is_file() else ()
        return self.interpreter.run(*OPTIONS, "--output", out, *resume, cwd=self.inputs, **fault)

    def finish(self, out: Path) -> None:
        ended = self.part(out)
        assert ended.status == 0, ended.printed
        for name in ("loss.csv", "eval.csv"):
            assert curve(out / name) == curve(self.whole / name)
        weights = "draft/model.safetensors"
        assert (out / weights).read_bytes() == (self.whole / weights).read_bytes()
        assert {f.name for f in out.iterdir()} == {f.name for f in self.whole.iterdir()}


def curve(file: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_curve(file)]


def step_of(out: Path) -> int:
    """Steps that the checkpoint holds."""
    with safe_open(out / "checkpoint.safetensors", framework="pt") as content:
        return int(json.loads(content.metadata()["state"])["step"])


@pytest.fixture(scope="module")
def training(
    interpreter: Interpreter, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Training:
    if not (inputs / "text").is_dir():
        text_folder(inputs / "text")
    return Training(interpreter, inputs, tmp_path_factory.mktemp("trainings"))


def test_killed_and_interrupted_while_checkpoints_are_written(training: Training) -> None:
    out = training.folder / "disturbed"
    checkpoint = training.writes.index(".checkpoint.safetensors.part")
    once = training.part(out, fault=Fault(event=checkpoint, number=signal.SIGINT))
    assert once.status == 130
    assert "--resume continues" in once.printed
    assert "Traceback" not in once.printed
    assert (step_of(out), len(curve(out / "loss.csv"))) == (5, 5), "no step is lost"
    # a resumed part writes train.json and the two curves anew, then the next checkpoint
    for fault in (Fault(event=6, torn=0.5), Fault(event=7)):
        killed = training.part(out, fault=fault)
        assert killed.status == -9
        assert killed.writes[6:] == [".checkpoint.safetensors.part"][: fault.event - 6]
        assert step_of(out) == 5, "the one before is intact"
    twice = training.part(out, fault=Fault(event=6, number=signal.SIGINT, times=2))
    assert twice.status == 130
    assert not twice.writes[6:], "it ends at once"
    training.finish(out)
