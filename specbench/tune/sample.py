"""One pass of a setting over the tuning prompts: what it yields, and how it may fail."""

from dataclasses import dataclass
from typing import Protocol

from specbench.config import Goal
from specbench.errors import SpecbenchError
from specbench.tune.space import Setting


class LossyError(SpecbenchError):
    """The output of a lossless method is not the target's."""


@dataclass(frozen=True)
class Sample:
    """The figures of one pass.

    Attributes
    ----------
    throughput : float
        Decode tokens/s of the full batch.
    tpot_ms : float
        Decode milliseconds per token of a request, mean over requests.
    histograms : tuple of tuple of int
        For each prompt: entry n is the number of steps that committed n tokens.
    """

    throughput: float
    tpot_ms: float
    histograms: tuple[tuple[int, ...], ...]

    @property
    def acceptance_length(self) -> float | None:
        """Tokens committed per step, all prompts together; None without a step."""
        steps = sum(sum(counts) for counts in self.histograms)
        tokens = sum(n * count for counts in self.histograms for n, count in enumerate(counts))
        return tokens / steps if steps else None

    def merit(self, goal: Goal) -> float:
        """What the objective makes large: tokens/s, or tokens per millisecond of a request."""
        return self.throughput if goal == "throughput" else 1 / self.tpot_ms


class Measure(Protocol):
    """Runs a setting over the tuning prompts."""

    def __call__(self, setting: Setting, repeat: int) -> Sample:
        """One pass, warmed.

        Raises
        ------
        LossyError
            The output is wrong.
        Exception
            Whatever else ends a pass: out of memory, NaN.
        """
