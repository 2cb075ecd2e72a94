"""Lines of vLLM's process: an event, or one error of its arm."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.bench.residency import VllmShare
from specbench.config import RunConfig
from specbench.engine.generate import Progress, Request
from specbench.engine.sampling import Sampling
from specbench.methods.vllm import process as process_module
from specbench.methods.vllm.backend import VllmBackend, VllmJob
from specbench.methods.vllm.method import Vllm, VllmParameters
from specbench.methods.vllm.process import VllmError, VllmProcess
from tests.support.hostile import damaged, examples, mutated, outcome, to_json

COUNTERS = {"vllm:num_preemptions": 0, "vllm:spec_decode_num_drafts": 2,
            "vllm:spec_decode_num_draft_tokens": 4, "vllm:spec_decode_num_accepted_tokens": 3,
            "vllm:spec_decode_num_accepted_tokens_per_pos": [2, 1]}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"event": "filled", "index": 0, "seconds": 0.5, "tokens": 3, "cached": 0},
    {"event": "decoded", "tokens": 3},
    {"event": "finished", "index": 0, "output_ids": [4, 5, 6], "reason": "length", "decode_s": 0.1,
     "committed": [2], "step_s": [0.1], "running": [1]},
    {"event": "counted", "fill_hits": 0, "decode_hits": 3, "before": {}, "after": COUNTERS},
    {"event": "done"},
]  # fmt: skip
SPECULATIVE = 'speculative_config={"method": "ngram", "num_speculative_tokens": 2}'


class Recorded(VllmProcess):
    """A process that ended, and what it had sent."""

    def __init__(self, sent: bytes, folder: Path) -> None:
        self.timeout = 5.0
        self.log = folder / "vllm.log"
        self.log.write_text("a line\n")
        self._log_start = 0
        self._buffer = sent
        self._events, writer = os.pipe()
        os.close(writer)
        self._commands = open(os.devnull, "w")  # noqa: SIM115 - closed by the garbage collector
        self._process = Ended()  # type: ignore[assignment]

    def close(self) -> None:
        self._commands.close()
        if self._events >= 0:
            os.close(self._events)
            self._events = -1


class Ended:
    """What `subprocess` knows of it."""

    returncode = 0

    def poll(self) -> int:
        return 0

    def wait(self, seconds: float) -> int:
        return 0


def generate(sent: bytes, folder: Path) -> None:
    share = VllmShare(kv_bytes=1, total=1, group=1, utilization=None)
    job = VllmJob(RunConfig(), "vllm", folder, 1, 16, (), 1000, False, share)
    backend = VllmBackend(Vllm(VllmParameters(vllm_arg=(SPECULATIVE,))), job)
    backend._process = Recorded(sent, folder)
    backend._about = {"package": "vllm", "version": "0.30.0"}
    requests = [Request(0, "a", [1, 2, 3], 3)]
    try:
        for made in backend.generate(requests, Sampling(), Progress(), 0):
            made.times.model_dump_json()
        assert backend.served is not None
        backend.served.model_dump_json()
    finally:
        backend.close()


def lines(events: list[Any]) -> bytes:
    return b"".join(to_json(event).encode() + b"\n" for event in events)


def test_the_whole_stream_gives_a_record(tmp_path: Path) -> None:
    generate(lines(EVENTS), tmp_path)


@examples(60)
@given(data=st.data())
def test_a_changed_stream(data: st.DataObject, tmp_path: Path) -> None:
    events = data.draw(mutated(EVENTS))
    sent = lines(events) if isinstance(events, list) else to_json(events).encode() + b"\n"
    outcome(lambda: generate(sent, tmp_path), "vLLM", "vllm.log")


@examples(50)
@given(data=st.data())
def test_a_damaged_stream(data: st.DataObject, tmp_path: Path) -> None:
    sent = data.draw(damaged(lines(EVENTS)))
    outcome(lambda: generate(sent, tmp_path), "vLLM", "vllm.log")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 7}, "tells of a request 7"),
        ({"committed": [2, 1]}, "differ in length"),
        ({"output_ids": "abc"}, "finished: output_ids"),
        ({"decode_s": 1e400}, "no event: Infinity|no event: finished: decode_s"),
    ],
)
def test_an_event_that_cannot_be(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    sent = lines([EVENTS[0], EVENTS[2] | change, *EVENTS[3:]])
    with pytest.raises(VllmError, match=message):
        generate(sent, tmp_path)


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LONGEST_LINE", 1000)
    process = Recorded(b"", tmp_path)
    process._events, writer = os.pipe()
    os.write(writer, b"x" * 2000)
    os.close(writer)
    with pytest.raises(VllmError, match="a line of over 1,000 bytes"):
        list(process.ask("run"))
    process.close()


def test_a_refusal_is_an_event(tmp_path: Path) -> None:
    sent = json.dumps({"event": "error", "kind": "RefusedError", "message": "no\nmore"}).encode()
    with pytest.raises(VllmError, match=r"^no \(whole log"):
        generate(sent + b"\n", tmp_path)
