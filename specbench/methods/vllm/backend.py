"""Runs an arm in vLLM: starts it with what the run decided, and turns its events into records."""

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.backend import Backend
from specbench.bench.servers import Server
from specbench.engine.generate import Generated, Progress, Request
from specbench.errors import DataError
from specbench.methods.vllm.process import VllmError, VllmProcess, interpreter
from specbench.methods.vllm.said import to_generated, to_served
from specbench.methods.vllm.session import session_memory
from specbench.results.records import ServedRecord

if TYPE_CHECKING:
    from specbench.bench.residency import VllmShare
    from specbench.bench.servers import Servers
    from specbench.config import RunConfig
    from specbench.engine.sampling import Sampling
    from specbench.methods.vllm.method import Vllm

WARM_TOKENS = 256
# Given by the user, these take the place of the run's own sizing of the KV cache.
_MEMORY_KEYS = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")


@dataclass(frozen=True)
class VllmJob:
    """What the run decided for vLLM.

    Attributes
    ----------
    config : RunConfig
        Fully resolved.
    name : str
        The arm's; its log is ``<name>.log`` in `folder`.
    folder : Path
        The run's.
    rows : int
        Requests that decode together.
    max_len : int
        Tokens of the longest request, room for drafts included.
    eos : tuple of int
        Tokens that end a request.
    vocabulary : int
        Tokens that the model knows.
    dummy : bool
        Random weights.
    share : VllmShare
        Its memory, and how many prompts its KV cache holds.
    """

    config: "RunConfig"
    name: str
    folder: Path
    rows: int
    max_len: int
    eos: tuple[int, ...]
    vocabulary: int
    dummy: bool
    share: "VllmShare"


class VllmBackend(Backend):
    """An arm's vLLM; started by `open`, ended by `close` and by anything that goes wrong.

    With `servers` it is one of theirs where it fits, and `release` gives it to them.
    """

    times_out = True

    def __init__(self, method: "Vllm", job: VllmJob, servers: "Servers | None" = None) -> None:
        self.method = method
        self.job = job
        self._servers = servers
        self._started_with: tuple[Any, ...] = ()
        self.graph_mode = self.attention_backend = "unknown"
        self.served: ServedRecord | None = None
        self._process: VllmProcess | None = None
        self._about: dict[str, Any] = {}
        self._device_bytes: int | None = None

    def open(self) -> None:
        """Start vLLM, unless it runs.

        Raises
        ------
        VllmError, OutOfMemoryError, ContextTooLongError, ArmTimeoutError
            See `VllmProcess.ask`; VllmError also where the model cannot be handed over.
        """
        if self._process is not None:
            return
        config, parameters = self.job.config, self.method.parameters
        python = interpreter(None if (p := parameters.vllm_python) is None else str(p))
        environment = _environment(config) | self.method.environment()
        arguments = self._arguments(self._model_folder())
        extra = list(parameters.vllm_arg)
        self._started_with = (python, environment, arguments, extra)
        server = None
        if self._servers is not None:
            server = self._servers.take(self.job.name, self._started_with)
        if server is None:
            free = _free_device_bytes(config)
            log = self.job.folder / f"{self.job.name}.log"
            self._process = VllmProcess(python, log, environment, parameters.vllm_timeout)
            try:
                *_, about = self._process.ask("start", arguments=arguments, extra=extra)
            except BaseException:
                self.close()
                raise
            self._about = {key: value for key, value in about.items() if key != "event"}
            if free is not None:
                taken = free - (_free_device_bytes(config) or free)
                # none of vLLM's where another process gave more back meanwhile
                self._device_bytes = taken if taken > 0 else None
        else:
            self._process, self._about = server.process, server.about
            self._device_bytes = server.device_bytes
        self.graph_mode = _graph_mode(self._about, self.job.rows)
        backend = self._process.attention_backend() or self._about.get("backend")
        self.attention_backend = f"vLLM {backend}" if backend else "vLLM's choice"

    def close(self) -> None:
        """End vLLM; nothing of it is left."""
        if self._process is not None:
            process, self._process = self._process, None
            process.close()
        if self._servers is not None:
            self._servers.close(self.job.name)

    def release(self) -> None:
        """Keep vLLM for the next plan where there may be one, else end it."""
        if self._servers is None:
            self.close()
        elif self._process is not None:
            process, self._process = self._process, None
            server = Server(process, self._started_with, self._about, self._device_bytes)
            self._servers.give(self.job.name, server)

    def generate(
        self,
        requests: Sequence[Request],
        sampling: "Sampling",
        progress: Progress,
        segment: int,
        fresh: bool = True,
    ) -> Generator[Generated]:
        """Fill and decode passes (docs/methodology.md); each request as vLLM finishes it."""
        self.open()
        process = self._process
        assert process is not None
        known = {request.index: request for request in requests}
        filled: dict[int, Mapping[str, Any]] = {}
        counts: list[dict[str, Any]] = []
        events = process.ask(
            "run",
            requests=[[r.index, r.token_ids, r.max_new_tokens] for r in requests],
            group=self.job.share.group,
            batch=self.job.rows,
            fresh=fresh,
            sampling={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "stop_token_ids": list(self.job.eos),
            },
        )
        finished = False
        try:
            for event in events:
                if "index" in event and event["index"] not in known:
                    raise VllmError(f"vLLM's process tells of a request {event['index']}")
                if event["event"] == "filled":
                    filled[event["index"]] = event
                    progress.prefilled(event["tokens"])
                elif event["event"] == "decoded":
                    progress.decoded(event["tokens"])
                elif event["event"] == "counted":
                    counts.append(event)
                elif event["event"] == "finished":
                    index = event["index"]
                    if index not in filled:
                        raise VllmError(f"vLLM finished the request {index} before it was filled")
                    yield to_generated(
                        known[index], event, filled[index], segment, self.job.vocabulary
                    )
            finished = True
        finally:
            if not finished:  # vLLM is still at work, or beyond it
                self.close()
        tokens = sum(len(request.token_ids) for request in requests)
        # a pass that was killed at its very end is resumed without a request
        self.served = None
        if requests:
            speculates = bool(self.method.speculation)
            try:
                self.served = to_served(self._about, counts, tokens, speculates)
            except (ValueError, TypeError, LookupError) as error:
                raise VllmError(f"vLLM's counters contradict each other: {error}") from error

    @property
    def warm_tokens(self) -> int:
        """Its first hundreds of steps were seen to be slower than the later ones."""
        return WARM_TOKENS

    def peak_memory(self) -> int | None:
        """Bytes that vLLM took on the device, or its processes' highest resident sets."""
        if self.job.config.device == "cuda":
            return self._device_bytes
        return session_memory(self._process.pid) if self._process is not None else None

    def _model_folder(self) -> Path:
        import torch

        from specbench.engine.export import hf_folder

        config = self.job.config
        try:
            return hf_folder(
                str(config.model),
                getattr(torch, str(config.dtype)),
                revision=config.model_revision,
                rope_scaling=config.rope_scaling,
                trust_remote_code=config.trust_remote_code,
            )
        except DataError as error:
            raise VllmError(f"the model cannot be handed to vLLM: {error}") from error

    def _arguments(self, model: Path) -> list[str]:
        config, job = self.job.config, self.job
        words = [
            *("--model", str(model)),
            *("--dtype", str(config.dtype)),
            *("--max-model-len", str(job.max_len)),
            *("--seed", str(config.seed % 2**31)),
            *("--generation-config", "vllm"),  # sampling comes with the requests alone
            "--skip-tokenizer-init",
            "--enable-prefix-caching",
        ]
        if config.trust_remote_code:
            words.append("--trust-remote-code")
        words += self.method.engine_arguments(job.rows)
        if job.dummy:
            words += ["--load-format", "dummy"]
        given = {arg.partition("=")[0].replace("-", "_") for arg in self.method.parameters.vllm_arg}
        if not given.intersection(_MEMORY_KEYS):
            words += ["--kv-cache-memory-bytes", str(job.share.kv_bytes)]
            if job.share.utilization is not None:
                words += ["--gpu-memory-utilization", f"{job.share.utilization:.4f}"]
        return words


def _environment(config: "RunConfig") -> dict[str, str]:
    # whatever this process is told for its own kernels, vLLM's are compiled
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TRITON_INTERPRET": "0"}
    if config.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
        if config.threads:
            cores = sorted(os.sched_getaffinity(0))[: config.threads]
            variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    return variables


def _free_device_bytes(config: "RunConfig") -> int | None:
    if config.device != "cuda":
        return None
    import torch

    return torch.cuda.mem_get_info()[0]


def _graph_mode(about: Mapping[str, Any], rows: int) -> str:
    """vLLM's graph mode, and whether a step of the full batch is beyond its largest graph."""
    mode = str(about.get("cudagraph_mode") or "NONE")
    if mode == "NONE":
        return "eager"
    largest = about.get("max_cudagraph_capture_size")
    tokens = rows * ((about.get("num_speculative_tokens") or 0) + 1)
    if isinstance(largest, int) and tokens > largest:
        return f"{mode}, none beyond {largest} tokens (a full step has {tokens})"
    return mode
