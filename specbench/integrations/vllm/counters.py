"""What the plug-in did: totals, a line in vLLM's log, and the same as JSON."""

import json
import logging
from pathlib import Path
from time import perf_counter

import torch

from specbench.files import write_atomically
from specbench.integrations.vllm.rounds import RANKED, SAMPLED, VOTES, Ints

LOG = logging.getLogger("vllm.specbench")
MODES = ("FULL", "PIECEWISE", "NONE")


class Counters:
    """Totals since the start.

    Parameters
    ----------
    device : torch.device
    log_seconds : float
        Between two lines; 0 for none.
    stats : Path, optional
        Where `figures` are kept as JSON, as of the last line.

    Attributes
    ----------
    rounds, skipped : int
        Batches that got drafts, and batches that vLLM verified zeros for, since one of their
        requests was within gamma tokens of the maximum length.
    modes : dict
        Verified batches by the CUDA graph that vLLM ran: FULL, PIECEWISE or NONE.
    verified, committed : int
        Verifications of a request's drafts, and the tokens that they gave.
    ranked, kept : int
        Entries that drafts could choose from and those that they read, summed over requests.
    draft_s, step_s : float
        Device time of the drafter (host time on a CPU), and of whole steps.
    """

    def __init__(
        self, device: torch.device, log_seconds: float = 0.0, stats: Path | None = None
    ) -> None:
        self.log_seconds, self.stats, self._silent = log_seconds, stats, False
        self.rounds = self.skipped = self.verified = self.committed = self.ranked = self.kept = 0
        self.modes = dict.fromkeys(MODES, 0)
        self.draft_s = self.step_s = 0.0
        self._mode: str | None = None
        self._timer = _DeviceTimer() if device.type == "cuda" else _HostTimer()
        self._ended = 0.0
        self._logged = perf_counter()

    def silence(self) -> None:
        """Leave line and file to another rank, which counts the same."""
        self.log_seconds, self.stats, self._silent = 0.0, None, True

    def skip(self) -> None:
        """A batch passed without drafts for its length."""
        self.skipped += 1

    def forward(self) -> None:
        """Attention runs from Python: vLLM's step is no FULL graph, or is being captured."""
        from vllm.forward_context import get_forward_context, is_forward_context_available

        mode = None
        if is_forward_context_available():
            mode = getattr(get_forward_context(), "cudagraph_runtime_mode", None)
        self._mode = getattr(mode, "name", "NONE")

    def begin(self) -> None:
        """A round of drafting begins."""
        self.modes[self._mode or "FULL"] += 1
        self._mode = None
        self._timer.begin()

    def end(self, planned: Ints, kept: int) -> None:
        """It is on its way to the device, or done.

        Parameters
        ----------
        planned : array
            See `rounds.plan_round`.
        kept : int
            Entries that its drafts read, summed over requests.
        """
        self._timer.end()
        now = perf_counter()
        both = planned[:, VOTES] == 2
        self.rounds += 1
        self.verified += int(both.sum())
        self.committed += int(planned[both, SAMPLED].sum())
        self.ranked += int(planned[:, RANKED].sum())
        self.kept += kept
        # the pause between two requests is no step
        if self._ended and now - self._ended < 1.0:
            self.step_s += now - self._ended
            self.draft_s += self._timer.last
        self._ended = now
        if self.log_seconds and now - self._logged > self.log_seconds:
            self._logged = now
            self.report()

    def figures(self) -> dict[str, object]:
        """The totals and what follows from them; unknown is None."""

        def ratio(a: float, b: float) -> float | None:
            return a / b if b else None

        return {
            "rounds": self.rounds,
            "rounds_skipped_by_length": self.skipped,
            "graph_modes": dict(self.modes),
            "verifications": self.verified,
            "committed": self.committed,
            "acceptance_length": ratio(self.committed, self.verified),
            "kept_ratio": ratio(self.kept, self.ranked),
            "drafter_share": ratio(self.draft_s, self.step_s),
        }

    def report(self) -> None:
        """The line, and the file."""
        if self._silent:
            return
        figures = self.figures()

        def shown(name: str) -> str:
            value = figures[name]
            return "unknown" if value is None else f"{value:.3g}"

        modes = ", ".join(f"{count} {mode}" for mode, count in self.modes.items())
        LOG.info(
            "specbench: acceptance length %s, kept ratio %s, drafter's share of a step %s, "
            "%d rounds (%s), %d skipped by length",
            *map(shown, ("acceptance_length", "kept_ratio", "drafter_share")),
            *(self.rounds, modes, self.skipped),
        )
        if self.stats is not None:
            write_atomically(self.stats, json.dumps(figures).encode())


class _HostTimer:
    """Seconds of the last span."""

    last = 0.0

    def begin(self) -> None:
        self._began = perf_counter()

    def end(self) -> None:
        self.last = perf_counter() - self._began


class _DeviceTimer:
    """Seconds of the last span that the device has finished; nothing waits for it."""

    last = 0.0

    def __init__(self) -> None:
        self._pairs = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(2)
        ]
        self._turn = self._spans = 0

    def begin(self) -> None:
        self._pairs[self._turn][0].record()

    def end(self) -> None:
        self._pairs[self._turn][1].record()
        self._turn ^= 1
        self._spans += 1
        began, ended = self._pairs[self._turn]
        if self._spans > 1 and ended.query():
            self.last = began.elapsed_time(ended) / 1000
