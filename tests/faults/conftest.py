"""What tests of faults share: an interpreter that is ready, a tiny model, its prompts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.folder import write_model, write_prompts
from tests.support.prepared import Interpreter
from tests.support.torture import Torture


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """One for all tests."""
    prepared = Interpreter()
    yield prepared
    prepared.close()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model`` and ``prompts.jsonl``."""
    root = tmp_path_factory.mktemp("inputs")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [20 + 9 * i for i in range(6)])
    return root


@pytest.fixture(scope="session")
def torture(
    interpreter: Interpreter, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Torture:
    """A greedy run of 16 requests, once undisturbed."""
    options = (
        *("--model", "model", "--dataset", "file:prompts.jsonl", "--num-prompts", 4),
        *("--max-new-tokens", 12, "--min-tokens", 4, "--gamma", 3),
        *("--batch-size", 2, "--repeats", 2),
    )
    return Torture(interpreter, inputs, tmp_path_factory.mktemp("runs"), *options)
