"""One recorded run: every table and plot comes from its records again, byte by byte.

``tests/data/recorded`` was made by the command in its `run.json`. After a change that is meant to
change the tables, ``python -m tests.results.test_recorded`` writes what is expected anew.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.results.report import render_files, summarise

FOLDER = Path(__file__).parents[1] / "data" / "recorded"
SUMS = FOLDER / "SHA256SUMS"
READ = ("table.csv", "table.md", "table.tex")
RECORDS = ("run.json", "requests.jsonl", "arms.jsonl", "lossless.jsonl", "scores.jsonl")
PLOTS = ("throughput", "speedup", "acceptance", "split", "context")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return render_files(summarise(FOLDER))


def sums(files: dict[str, bytes]) -> str:
    """Of the tables: what a plot's bytes are depends on the version of matplotlib too."""
    tables = [name for name in sorted(files) if name.endswith((".csv", ".md", ".tex"))]
    return "".join(f"{hashlib.sha256(files[n]).hexdigest()}  {n}\n" for n in tables)


@pytest.mark.parametrize("name", READ)
def test_the_table_is_the_one_on_record(files: dict[str, bytes], name: str) -> None:
    assert files[name].decode() == (FOLDER / name).read_text(encoding="utf-8")


def test_every_table_is_byte_stable(files: dict[str, bytes]) -> None:
    assert sums(files) == SUMS.read_text()


def test_every_plot_and_the_page_are_there(files: dict[str, bytes]) -> None:
    images = {f"{name}.{kind}" for name in PLOTS for kind in ("png", "svg")}
    assert {name for name in files if name.endswith((".png", ".svg"))} == images
    assert "report.html" in files


def test_another_process_writes_the_same_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    copy = tmp_path / FOLDER.name
    copy.mkdir()
    for name in RECORDS:
        shutil.copy(FOLDER / name, copy)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "report", str(copy)],
        env=os.environ | {"PYTHONHASHSEED": "7", "COLUMNS": "60"},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in copy.iterdir() if path.name not in RECORDS}
    assert written == files


def test_the_record_is_small_and_names_no_machine_path() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 150_000
    text = (FOLDER / "run.json").read_text()
    assert not any(folder in text for folder in ("/home/", "/root/", "/tmp/"))


if __name__ == "__main__":
    made = render_files(summarise(FOLDER))
    for name in READ:
        (FOLDER / name).write_bytes(made[name])
    SUMS.write_text(sums(made))
