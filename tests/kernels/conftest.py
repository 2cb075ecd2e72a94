"""What the interpreted kernels need."""

import importlib.util
import os

import pytest

from tests.support.loop_bounds import mend_loop_bounds


@pytest.fixture(scope="session", autouse=True)
def _loop_bounds() -> None:
    """Once the decision for the interpreter is made, which loading this file precedes."""
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        mend_loop_bounds()
