"""What runs an arm's passes: specbench's engine, or another one in a process of its own."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from specbench.engine.generate import Generated, Progress, Request

if TYPE_CHECKING:
    from specbench.engine.probe import Probe
    from specbench.engine.sampling import Sampling
    from specbench.results.records import ServedRecord


class Backend(ABC):
    """Runs the requests of one arm.

    Attributes
    ----------
    graph_mode, attention_backend : str
        For the records; known once open.
    served : ServedRecord or None
        What an engine of another process said of the last pass.
    times_out : bool
        Whether it notices by itself that its engine gives no sign of life.
    """

    graph_mode: str
    attention_backend: str
    served: "ServedRecord | None" = None
    times_out = False

    @abstractmethod
    def open(self) -> None:
        """Take the memory and start what must be started; nothing if that is done."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back; `open` may follow."""

    def release(self) -> None:
        """Be done: by default as `close`; what is shared may be kept for others."""
        self.close()

    @abstractmethod
    def generate(
        self,
        requests: Sequence[Request],
        sampling: "Sampling",
        progress: Progress,
        segment: int,
        fresh: bool = True,
    ) -> Generator[Generated]:
        """Decode `requests`, yielding each as it completes; `fresh`: every prompt is prefilled."""

    def recover(self) -> None:
        """Give back what a pass that failed may still hold; others are to run after it."""

    @property
    @abstractmethod
    def warm_tokens(self) -> int:
        """New tokens of a request that warm the arm up."""

    def overhead(self, requests: Sequence[Request], sampling: "Sampling") -> "Probe | None":
        """Device time of an iteration of a batch of `requests`, by phase.

        None where an iteration is no captured graph.

        Raises
        ------
        SpecbenchError
            It cannot be measured on these requests.
        """
        return None

    def reset_peak(self) -> None:
        """Start `peak_memory` anew, where that is possible."""

    @abstractmethod
    def peak_memory(self) -> int | None:
        """The most bytes that the pass took; None where the system does not say."""
