"""`specbench train longspec` as a user meets it: files, resuming, a kill, and errors."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.engine.loader import read_model_config
from specbench.methods.longspec.weights import read_config
from specbench.train.curves import read_curve
from specbench.train.session import Session
from tests.engine.hf_models import save, tiny_hf
from tests.engine.tokenizer_file import write_tokenizer
from tests.train.toy import text_folder

OPTIONS = (
    *("--short-len", "16", "--short-batch", "4", "--short-steps", "8", "--short-lr", "0.01"),
    *("--long-len", "32", "--long-batch", "2", "--long-steps", "4", "--depth", "3"),
    *("--window", "8", "--eval-every", "3", "--eval-tokens", "64", "--save-every", "2"),
    *("--device", "cpu", "--dtype", "float32"),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and a folder of text."""
    folder = tmp_path_factory.mktemp("inputs")
    save(tiny_hf("llama"), folder / "target")
    write_tokenizer(folder / "target", ("red", "green", "blue"))
    text_folder(folder / "text")
    return folder


def arguments(inputs: Path, output: Path, *more: str) -> list[str]:
    paths = ("--model", str(inputs / "target"), "--data", str(inputs / "text"))
    return ["train", "longspec", *paths, "--output", str(output), *OPTIONS, *more]


def train(inputs: Path, output: Path, *more: str) -> int:
    """The exit status of a training in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments(inputs, output, *more))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def curve(folder: Path, name: str = "loss.csv") -> list[dict[str, str]]:
    """All columns but the clock's."""
    rows = read_curve(folder / name)
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert train(inputs, folder) == 0
    return folder


def test_a_training_leaves_a_draft_curves_and_its_record(whole: Path, inputs: Path) -> None:
    steps = [int(row["step"]) for row in curve(whole)]
    assert steps == list(range(12))
    assert [row["stage"] for row in curve(whole)] == ["short"] * 8 + ["long"] * 4
    assert int(curve(whole)[-1]["tokens"]) == 8 * 4 * 16 + 4 * 2 * 32
    evaluated = curve(whole, "eval.csv")
    assert [int(row["step"]) for row in evaluated if row["lag"] == "1"] == [
        step for step in (2, 5, 8, 11) for _ in ("near", "far", "long")
    ]
    assert (whole / "loss.png").read_bytes()[:4] == b"\x89PNG"
    training = json.loads((whole / "draft" / "training.json").read_text())
    assert training["config"]["short_steps"] == 8
    assert training["config"]["data"] == ["text"], "no path outside the working folder"
    assert training["trained"]["step"] == 12
    assert training["target"]["architecture"] == "llama"
    assert training["data"]["tokens"]["evaluation"] > 0
    config = json.loads((whole / "draft" / "config.json").read_text())
    assert (config["window"], config["depth"], config["target"]) == (8, 3, "target")
    draft = read_config(whole / "draft", "draft")
    draft.check_target(read_model_config(str(inputs / "target")), "draft")


def test_parts_make_the_same_curve(
    whole: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    # no step fits into a millisecond
    assert train(inputs, output, "--max-minutes", "0.00001") == 0
    assert curve(output) == []
    for steps in (5, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Session, "_has_time", lambda self, longest, end=steps: self.state["step"] < end
            )
            assert train(inputs, output, "--resume") == 0
        assert len(curve(output)) == steps
        assert f"{steps} of 12 steps" in capsys.readouterr().out
        trained = json.loads((output / "draft" / "training.json").read_text())["trained"]
        assert trained["step"] == steps
    assert train(inputs, output, "--resume") == 0
    assert curve(output) == curve(whole)
    assert curve(output, "eval.csv") == curve(whole, "eval.csv")


def test_text_can_be_encoded_ahead(
    whole: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    assert train(inputs, output, "--encode-only") == 0
    assert [file.name for file in output.iterdir()] == ["tokens"]

    def unread(*arguments: Any) -> None:
        raise AssertionError("the text is not needed any more")

    monkeypatch.setattr("specbench.train.text._local", unread)
    assert train(inputs, output) == 0
    assert curve(output) == curve(whole)


def killed(inputs: Path, output: Path, after: int, *more: str) -> None:
    """A training in a process of its own, killed once `after` steps are on record."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specbench", *arguments(inputs, output, *more)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(read_curve(output / "loss.csv")) < after:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_training_goes_on_with_the_same_curve(inputs: Path, tmp_path: Path) -> None:
    long = ("--short-steps", "120", "--save-every", "10")
    assert train(inputs, tmp_path / "whole", *long) == 0
    output = tmp_path / "killed"
    killed(inputs, output, 25, *long)
    killed(inputs, output, 60, *long, "--resume")
    before = len(curve(output))
    assert before < 124
    assert train(inputs, output, *long, "--resume") == 0
    assert curve(output) == curve(tmp_path / "whole")
    assert curve(output, "eval.csv") == curve(tmp_path / "whole", "eval.csv")
    drafts = [tmp_path / name / "draft" / "model.safetensors" for name in ("whole", "killed")]
    assert drafts[0].read_bytes() == drafts[1].read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "holds a training: --resume continues it"),
        (("--resume", "--short-lr", "0.5"), "began with --short-lr 0.01, not 0.5"),
        (("--resume", "--seed", "3"), "began with --seed 0, not 3"),
    ],
)
def test_a_training_is_not_overwritten_or_bent(
    whole: Path,
    inputs: Path,
    more: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = (whole / "checkpoint.safetensors").read_bytes()
    assert train(inputs, whole, *more) == 2
    assert message in capsys.readouterr().err
    assert (whole / "checkpoint.safetensors").read_bytes() == before


def test_other_text_is_noticed(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, text = tmp_path / "out", text_folder(tmp_path / "text")
    more = ("--data", str(text), "--long-steps", "0")
    assert train(inputs, output, *more) == 0
    (text / "9.txt").write_text("red red red")
    assert train(inputs, output, *more, "--resume") == 0, "encoded once, so the text is not needed"
    (output / "tokens" / "tokens.json").unlink()
    assert train(inputs, output, *more, "--resume") == 3
    assert "its tokens differ" in capsys.readouterr().err


def test_a_full_disk_leaves_the_last_checkpoint(
    whole: Path,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    fsync, files = os.fsync, []

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "checkpoint" in name:
            files.append(name)
            if len(files) > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert train(inputs, output) == 3
    shown = capsys.readouterr().err
    assert "cannot write" in shown
    assert "No space left on device; the one before is intact" in shown
    assert train(inputs, output, "--resume") == 0
    assert curve(output) == curve(whole)


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (("--data", "/none"), 2, "--data /none: there is no such file or folder"),
        (("--model", "dummy:tiny"), 2, "has no tokenizer"),
        (("--long-len", "65"), 2, "holds 64 tokens, but 65"),
        (("--short-len", "3"), 2, "short_len must exceed depth"),
        (("--short-lr", "0"), 2, "--short-lr '0': input should be greater than 0"),
        (("--device", "cuda"), 2, "CUDA is not available"),
        (("--model", "gpt-17"), 2, "unknown model 'gpt-17'"),
    ],
)
def test_what_cannot_be_trained_is_explained(
    inputs: Path,
    tmp_path: Path,
    more: tuple[str, ...],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train(inputs, tmp_path / "out", *more) == status
    assert message in capsys.readouterr().err


def test_an_unsupported_target_is_explained(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mamba"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    assert train(inputs, tmp_path / "out", "--model", str(folder)) == 3
    assert "MambaForCausalLM" in capsys.readouterr().err


def test_too_little_memory_is_explained(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch

    def exhausted(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("specbench.train.trainer.draft_loss", exhausted)
    assert train(inputs, tmp_path / "out") == 3
    assert "lower --micro-tokens" in capsys.readouterr().err


def test_options_can_stand_in_a_file(inputs: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("short-steps: 1\nlong_steps: 0\nshort_len: 16\nshort_batch: 1\ndepth: 2\n")
    paths = ("--model", str(inputs / "target"), "--data", str(inputs / "text"))
    argv = ["train", "longspec", "--config", str(file), *paths, "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    assert len(curve(tmp_path / "out")) == 1
