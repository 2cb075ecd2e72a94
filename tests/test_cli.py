"""The command line as a user meets it: help, listings, messages and exit statuses."""

import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import specbench
from specbench.cli import main
from specbench.cli_help import (
    ORDER,
    REPORT_EXAMPLES,
    RUN_EXAMPLES,
    TUNE_EXAMPLES,
    complete_methods,
)
from specbench.config import SweepConfig

ROOT = Path(specbench.__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "pandas", "matplotlib", "numpy", "rich", "optuna")


def call(*argv: str) -> int:
    """The exit status of the command line, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, at the root of the checkout."""
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, cwd=ROOT, env=environment
    )


def test_help_answers_in_half_a_second() -> None:
    """Of the processor's time: on a busy machine the clock on the wall tells of others' work."""
    seconds = []
    for _ in range(3):
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python("-m", "specbench", "--help")
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
        assert done.returncode == 0
        assert all(command in done.stdout for command in ("run", "tune", "ls", "doctor"))
    assert statistics.median(seconds) < 0.5


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["ls", "models"], ["--version"]])
def test_light_commands_import_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys\nfrom specbench.cli import main\n"
        f"try:\n    main({argv})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print('loaded:', sorted(set({HEAVY}) & sys.modules.keys()))"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "loaded: []"


def test_run_help_shows_every_field_with_its_description(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert call("run", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in SweepConfig.model_fields.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert field.description is not None
        assert field.description in shown
    assert "Default: 512." in shown
    assert "logit|weight" in shown


def test_options_stand_in_groups_and_examples_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert call("run", "--help") == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{title}:\n") for title in ORDER if title not in ("Tuning",)]
    assert places == sorted(places)
    # nothing but --help is without a group
    other = shown[shown.index("\nOptions:\n") : shown.index("\nExamples:\n")]
    assert re.findall(r"--[a-z-]+", other) == ["--help"]
    for line in RUN_EXAMPLES.strip().splitlines():
        assert f"\n  {line}\n" in shown


@pytest.mark.parametrize("examples", [RUN_EXAMPLES, TUNE_EXAMPLES, REPORT_EXAMPLES])
def test_examples_name_options_that_exist(
    examples: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    for line in examples.strip().splitlines():
        program, command, *words = shlex.split(line, comments=True)
        assert program == "specbench"
        assert call(command, "--help") == 0
        shown = capsys.readouterr().out
        assert all(f"{word} " in shown for word in words if word.startswith("--"))


def test_a_shell_completes_names() -> None:
    asked = {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    expected = {"aime25,long": ["aime25,longbench-v2"], "co": ["codeelo"], "nothing": []}
    for typed, names in expected.items():
        done = subprocess.run(
            [sys.executable, "-c", "from specbench.cli import main; main()"],
            env=os.environ | asked | {"COMP_WORDS": f"specbench run --dataset {typed}"},
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.stdout.split() == names
    assert complete_methods("vegas,au") == ["vegas,autoregressive"]
    assert "all" in complete_methods("")


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"specbench {specbench.__version__}\n"
    assert call() == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--gamma", "-1"], "--gamma '-1': input should be greater than or equal to 0"),
        (["run", "--gamma", "x"], "--gamma 'x': input should be a valid integer"),
        (["run", "--kept-ratio", "0"], "--kept-ratio '0': input should be greater than 0"),
        (["run", "--kept-ratio", "1.5"], "--kept-ratio '1.5': input should be less than or equal"),
        (["run", "--device", "tpu"], "--device 'tpu': input should be 'cpu' or 'cuda'"),
        (["run", "--gama", "3"], "No such option: --gama"),
        (["run", "--method"], "'--method' requires an argument"),
        (["run", "--config", "none.yaml"], "cannot read the configuration none.yaml"),
        (["run", "extra"], "unexpected extra argument"),
        (["rum"], "No such command 'rum'"),
        (["ls", "metods"], "unknown kind 'metods'. Did you mean 'methods'?"),
    ],
)
def test_wrong_usage_ends_in_2_with_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("specbench: error: ")


@pytest.mark.parametrize("argv", [["--debug", "ls", "metods"], ["ls", "metods", "--debug"]])
def test_debug_shows_the_traceback_too(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*argv) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("specbench: error: unknown kind")


def test_a_crash_ends_in_3_and_says_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("specbench.cli_listing.diagnose", crash)
    assert call("doctor") == 3
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "crashed in cli_listing.py:" in shown
    assert "ZeroDivisionError: nothing to divide by" in shown
    assert call("doctor", "--debug") == 3
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_in_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.cli_listing.diagnose", interrupt)
    assert call("doctor") == 130
    assert capsys.readouterr().err == "specbench: interrupted; --resume continues a run\n"


def test_a_closed_pipe_does_not_end_like_a_lossy_run() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "ls", "models"],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_ls_methods_and_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", "methods") == 0
    methods = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"autoregressive", "vegas"} <= methods.keys()
    assert all(len(line.split()) > 3 for line in methods.values())
    assert call("ls", "datasets") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"aime25", "codeelo", "longbench-v2", "govreport", "file:PATH"} <= set(names)


def test_ls_without_a_kind_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"methods", "datasets", "models"} <= set(lines)
    assert any(line.startswith("Qwen/Qwen3-8B") for line in lines)
