"""The status that an error gives to the arm that it ended."""

import traceback

from specbench.errors import (
    ArmTimeoutError,
    ContextTooLongError,
    OutOfMemoryError,
    SpecbenchError,
)
from specbench.results.records import Status


def classify(error: Exception) -> tuple[Status, str]:
    """Status and message of an arm that `error` ended."""
    import torch

    first = str(error).strip().split("\n")[0] or type(error).__name__
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    if on_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemoryError):
        return Status.OOM, f"{first}; use a smaller --batch-size or --context-len"
    if isinstance(error, ArmTimeoutError):
        return Status.TIMEOUT, first
    if isinstance(error, ContextTooLongError):
        return Status.CONTEXT_TOO_LONG, first
    if isinstance(error, SpecbenchError):
        return Status.RUNTIME_ERROR, first
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Status.RUNTIME_ERROR, f"{type(error).__name__}: {first} ({place.name}:{place.lineno})"
