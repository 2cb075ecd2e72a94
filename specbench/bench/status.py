"""The status that an error gives to the arm that it ended."""

import re
import traceback

from specbench.errors import (
    ArmTimeoutError,
    ContextTooLongError,
    OutOfMemoryError,
    SpecbenchError,
)
from specbench.results.records import Status

# a device's allocator, its libraries, and the host's say it in words of their own
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|_ALLOC_FAILED", re.I)


def classify(error: Exception) -> tuple[Status, str]:
    """Status and message of an arm that `error` ended."""
    import torch

    first = str(error).strip().split("\n")[0] or type(error).__name__
    said = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    if said or isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemoryError):
        return Status.OOM, f"{first}; use a smaller --batch-size or --context-len"
    if isinstance(error, ArmTimeoutError):
        return Status.TIMEOUT, first
    if isinstance(error, ContextTooLongError):
        return Status.CONTEXT_TOO_LONG, first
    if isinstance(error, SpecbenchError):
        return Status.RUNTIME_ERROR, first
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Status.RUNTIME_ERROR, f"{type(error).__name__}: {first} ({place.name}:{place.lineno})"
