"""What the interpreted kernels need."""

import importlib.util
import os

from tests.support.loop_bounds import mend_loop_bounds

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    mend_loop_bounds()
