"""The one view of a plan: what it shows on a terminal, and that it is quiet elsewhere."""

import io

from rich.console import Console

from specbench.bench.progress import PlanProgress
from specbench.engine.generate import Request

REQUESTS = [Request(0, "a", [1, 2, 3], 4), Request(1, "b", [1], 4)]


def shown(terminal: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, height=30)
    with PlanProgress(console, 3) as bars:
        bars.ended()
        progress = bars.start("data arm 1/3", REQUESTS)
        progress.prefilled(4)
        progress.decoded(6)
        bars.ended("arm on data: OOM: no memory")
    return text.getvalue()


def test_a_terminal_shows_passes_and_tokens_and_a_failure_at_once() -> None:
    text = shown(terminal=True)
    for part in ("passes of the plan", "2/3", "data arm 1/3 prefill tokens", "4/4", "6/8"):
        assert part in text
    assert "arm on data: OOM: no memory" in text


def test_a_pipe_gets_failures_only() -> None:
    assert shown(terminal=False) == "arm on data: OOM: no memory\n"
