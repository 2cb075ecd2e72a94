"""A run that was killed ends, resumed, in the records of an undisturbed one."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.folder import command, environment, specbench, write_model, write_prompts

ROOT = Path(__file__).parents[2]
OPTIONS = [
    *("run", "--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 12),
    *("--max-new-tokens", 40, "--min-tokens", 4, "--gamma", 3, "--repeats", 2),
]


def records(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Requests by key, without their times."""
    found = {}
    for line in (folder / "requests.jsonl").read_text().splitlines():
        record = json.loads(line)
        record.pop("times")
        key = tuple(record[name] for name in ("arm", "dataset", "repeat", "index"))
        assert key not in found
        found[key] = record
    return found


@pytest.mark.parametrize(
    "extra",
    [("--batch-size", 1), ("--batch-size", 3, "--temperature", 0.9, "--top-k", 20)],
    ids=["greedy", "sampled batch"],
)
def test_kill_and_resume(tmp_path: Path, extra: tuple[object, ...]) -> None:
    write_model(tmp_path / "model", seed=3)
    write_prompts(tmp_path / "prompts.jsonl", [40 + 9 * i for i in range(12)])
    whole = specbench(*OPTIONS, *extra, "--output", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen(
        command(*OPTIONS, *extra, "--output", "killed"),
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = tmp_path / "killed" / "requests.jsonl"
    deadline = time.monotonic() + 120
    # in the middle of the first Vegas pass
    while not file.is_file() or file.read_bytes().count(b"\n") < 15:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = file.read_bytes()
    file.write_bytes(kept + kept.splitlines()[-1][:50])  # and a line that the crash cut short
    refused = specbench(*OPTIONS, *extra, "--output", "killed", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    changed = specbench(
        *OPTIONS, *extra, "--gamma", 2, "--output", "killed", "--resume", cwd=tmp_path
    )
    assert changed.returncode == 2
    assert "gamma: 3 there, 2 now" in changed.stderr
    resumed = specbench(*OPTIONS, *extra, "--output", "killed", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert file.read_bytes().startswith(kept)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    again = specbench(*OPTIONS, *extra, "--output", "killed", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
