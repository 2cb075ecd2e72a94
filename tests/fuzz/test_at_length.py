"""The same properties with random examples, and many more of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "file", sorted(file.name for file in Path(__file__).parent.glob("test_*.py"))
)
def test_with_many_examples(file: str) -> None:
    """Each run draws others; SPECBENCH_FUZZ_EXAMPLES says how many, 1000 by default."""
    if file == Path(__file__).name:
        pytest.skip("this file")
    count = os.environ.get("SPECBENCH_FUZZ_EXAMPLES", "1000")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "timeout=0", f"tests/fuzz/{file}"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"SPECBENCH_FUZZ_EXAMPLES": count}, check=False
    )
    assert done.returncode == 0
