"""The template of docs/adding-a-method.md is a method that runs, is lossless and drafts."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folder import environment, write_model, write_prompts

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "adding-a-method.md"


def block(language: str) -> str:
    """The only block of that language."""
    found = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder in which the template is installed as a package of its own."""
    folder = tmp_path / "site"
    (folder / "my_package-1.0.dist-info").mkdir(parents=True)
    (folder / "my_package.py").write_text(block("python"))
    entry = re.search(r"^(\w+) = \"(.*)\"$", block("toml"), re.MULTILINE)
    assert entry is not None
    (folder / "my_package-1.0.dist-info" / "entry_points.txt").write_text(
        f"[specbench.methods]\n{entry[1]} = {entry[2]}\n"
    )
    (folder / "my_package-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n"
    )
    return folder


def specbench(package: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command line where the package is installed."""
    return subprocess.run(
        [sys.executable, "-m", "specbench", *map(str, arguments)],
        cwd=package.parent,
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_template_runs_and_is_lossless(package: Path, tmp_path: Path) -> None:
    listed = specbench(package, "ls", "methods")
    assert re.search(r"^cycle +no draft model; the last tokens again", listed.stdout, re.MULTILINE)
    model = write_model(tmp_path / "model", seed=3)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [40, 3, 90])
    done = specbench(
        package,
        *("run", "--method", "cycle", "--model", model, "--dataset", f"file:{prompts}"),
        *("--num-prompts", 3, "--batch-size", 2, "--max-new-tokens", 24, "--window", 3),
        *("--repeats", 1, "--output", "out"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    with (tmp_path / "out" / "acceptance.csv").open() as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert rows["cycle"]["status"] == "PASSED"
    assert int(rows["cycle"]["spec_decode_draft_tokens"]) > 0
    assert "exact 3/3" in done.stdout


def test_a_setting_out_of_range_is_refused(package: Path) -> None:
    done = specbench(package, "run", "--method", "cycle", "--window", 0, "--dry-run")
    assert done.returncode == 2
    assert "window" in done.stderr


def test_the_template_is_about_sixty_lines_and_in_the_projects_style(package: Path) -> None:
    lines = block("python").splitlines()
    assert 45 <= len(lines) <= 70
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", ROOT / "pyproject.toml", package],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
