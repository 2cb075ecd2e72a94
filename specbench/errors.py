"""Errors that reach the user as one message and an exit status."""


class SpecbenchError(Exception):
    """Base of every error that the command line prints without a traceback.

    Attributes
    ----------
    exit_status : int
        What the process ends with: 2 for usage or configuration, 3 for a run that failed.
    """

    exit_status = 3


class UsageError(SpecbenchError):
    """A wrong option, name, value or configuration: nothing was started."""

    exit_status = 2


class DataError(SpecbenchError):
    """Input that cannot be read or leaves nothing to run: a dataset, a model file, a hub."""


class ContextTooLongError(UsageError):
    """A context beyond what the model, its draft or the reserved KV cache can hold."""


class NumericalError(SpecbenchError):
    """Logits that are NaN or infinite; the message names the request and the step."""


class OutOfMemoryError(SpecbenchError):
    """The device or the host cannot hold what was asked for; the message gives the bytes."""


class ArmTimeoutError(SpecbenchError):
    """An arm's engine gave no sign of life for too long."""
