"""The environment in a run's record."""

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch

import specbench
from specbench.bench.environment import checkout, cpu_name, describe, memory_bytes, version

SECRET = "hf_notARealTokenButLongEnough"


def git(folder: Path, *argv: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *argv], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout of its own, committed."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return folder


def test_description_is_json_and_true() -> None:
    environment = describe(["specbench", "run", "--gamma", "3"])
    assert json.loads(json.dumps(environment)) == environment
    assert environment["specbench"] == specbench.__version__
    assert environment["argv"] == ["specbench", "run", "--gamma", "3"]
    assert environment["threads"] == torch.get_num_threads()
    assert environment["versions"]["torch"] == metadata.version("torch")
    assert len(environment["gpus"]) == torch.cuda.device_count()
    assert environment["cpu_cores"] >= 1


def test_secrets_of_the_shell_and_the_command_line_stay_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    environment = describe(["specbench", "run", "--hf-token", SECRET, "--source", "/x/y/data"])
    text = json.dumps(environment)
    assert SECRET not in text
    assert "/x/y" not in text
    assert environment["variables"]["OMP_NUM_THREADS"] == "2"


def test_what_is_not_installed_is_none() -> None:
    assert version("no-such-distribution-here") is None
    assert version("no-such-distribution-here", "torch") == metadata.version("torch")


def test_hardware_is_named() -> None:
    assert cpu_name()
    memory = memory_bytes()
    assert memory is None or memory > 2**28


def test_checkout_tells_commit_and_changes(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD")
    assert checkout(package) == {"commit": commit, "dirty": False}

    (package.parent / "results.csv").write_text("a")
    assert checkout(package) == {"commit": commit, "dirty": False}

    (package / "new.py").write_text("")
    assert checkout(package) == {"commit": commit, "dirty": True}


def test_an_untracked_package_has_no_commit(package: Path, tmp_path: Path) -> None:
    installed = package.parent / "site-packages" / "other"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert checkout(installed) is None


def test_no_checkout_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "__init__.py").write_text("")
    assert checkout(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(tmp_path) is None


def test_a_stated_commit_goes_before_the_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was copied into a folder of another repository is not that one's code."""
    monkeypatch.setenv("SPECBENCH_COMMIT", "abc123")
    assert describe(["specbench"])["git"] == {"commit": "abc123", "dirty": None}
