"""vLLM's processes, where several plans follow one another: started for the largest, and shared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.bench.plan import Plan
    from specbench.bench.residency import VllmShare
    from specbench.methods.vllm.process import VllmProcess


@dataclass(frozen=True)
class Server:
    """A vLLM that runs.

    Attributes
    ----------
    process : VllmProcess
    started_with : tuple
        Interpreter, variables and arguments: a plan that asks for others needs another process.
    about : dict
        What it said of itself.
    device_bytes : int or None
        What it took on the device.
    """

    process: "VllmProcess"
    started_with: tuple[Any, ...]
    about: dict[str, Any]
    device_bytes: int | None


class Servers:
    """Those of a sweep's plans, by arm; ended when it ends.

    Parameters
    ----------
    plans : sequence of Plan
        All that will share them.

    Attributes
    ----------
    max_len : int
        Prompt and new tokens of the longest request of all.
    exclusive : bool
        The largest do not fit beside the engine, so that they take turns.
    """

    def __init__(self, plans: "Sequence[Plan]") -> None:
        self.max_len = max(plan.max_len for plan in plans)
        self.exclusive = any(plan.residency.exclusive for plan in plans)
        self._plans = plans
        self._idle: dict[str, Server] = {}

    def share(self, arm: str, own: "VllmShare") -> "VllmShare":
        """A plan's share of memory, enlarged to the largest that the arm has in any."""
        shares = [s for plan in self._plans if (s := plan.residency.shares.get(arm))]
        largest = max(shares, key=lambda share: share.total)
        return replace(
            own,
            kv_bytes=max(share.kv_bytes for share in shares),
            total=largest.total,
            utilization=largest.utilization,
        )

    def take(self, arm: str, started_with: tuple[Any, ...]) -> Server | None:
        """The arm's idle server, if it was started so; one that was started otherwise is ended."""
        server = self._idle.pop(arm, None)
        if server is None or server.started_with == started_with:
            return server
        server.process.close()
        return None

    def give(self, arm: str, server: Server) -> None:
        """Keep a server for the next plan."""
        self._idle[arm] = server

    def close(self, arm: str) -> None:
        """End the arm's idle server, if there is one."""
        server = self._idle.pop(arm, None)
        if server is not None:
            server.process.close()

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for arm in list(self._idle):
            self.close(arm)
