"""A stand-in for vLLM's public API: emits known tokens in known steps, and fails when told to.

For what the real one does not do on demand: die, hang, run out of memory, draft without a GPU.
The engine argument `--behave` chooses, or the variable FAKE_VLLM_BEHAVES; the token after t is
t + 1, and a request's step commits 2 tokens where `--speculative-config` is given.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "EngineArgs", "SamplingParams"]

VOCABULARY = 64


class EngineArgs:
    """The engine arguments that specbench sets, and a few that users do."""

    model: str
    enforce_eager: bool = False
    behave: str = ""
    max_num_batched_tokens: int = 0

    @staticmethod
    def add_cli_args(parser: Any) -> Any:
        """All of them."""
        for flag in ("model", "dtype", "generation-config", "load-format", "behave"):
            parser.add_argument(f"--{flag}")
        for flag in ("attention-backend", "additional-config"):
            parser.add_argument(f"--{flag}")
        for flag in ("max-num-seqs", "max-cudagraph-capture-size"):
            parser.add_argument(f"--{flag}", type=int)
        parser.add_argument("--no-async-scheduling", action="store_true")
        for flag in ("max-model-len", "seed", "kv-cache-memory-bytes"):
            parser.add_argument(f"--{flag}", type=int)
        parser.add_argument("--max-num-batched-tokens", type=int, default=0)
        parser.add_argument("--gpu-memory-utilization", type=float)
        parser.add_argument("--speculative-config")
        parser.add_argument("--skip-tokenizer-init", action="store_true")
        parser.add_argument("--enable-prefix-caching", action="store_true")
        parser.add_argument("--enforce-eager", action="store_true")
        parser.add_argument("--no-enforce-eager", action="store_false", dest="enforce_eager")
        return parser

    @classmethod
    def from_cli_args(cls, namespace: Any) -> Any:
        """The parsed arguments as they are."""
        return namespace


@dataclass
class _Running:
    name: str
    ids: list[int]
    parameters: SamplingParams
    out: list[int] = field(default_factory=list)


class LLM:
    """Steps that take a millisecond."""

    def __init__(self, args: Any) -> None:
        print("engine arguments:", vars(args), flush=True)
        print("runner:", os.environ.get("VLLM_USE_V2_MODEL_RUNNER"), flush=True)
        args.behave = args.behave or os.environ.get("FAKE_VLLM_BEHAVES")
        if args.behave == "refuse":
            raise ValueError("Model architectures ['FooForCausalLM'] are not supported for now.")
        if args.behave == "out-of-memory":
            print(
                "(EngineCore pid=7) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried 9 GiB"
            )
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        if args.behave == "child":
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.args = args
        self.llm_engine = self
        self.waiting: list[_Running] = []
        self.rows: list[_Running] = []
        self.asleep = False
        self.counts = {"num_preemptions": 0}
        self.per_position = [0, 0]
        if args.speculative_config:
            self.counts |= dict.fromkeys(
                (
                    "spec_decode_num_drafts",
                    "spec_decode_num_draft_tokens",
                    "spec_decode_num_accepted_tokens",
                ),
                0,
            )
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=99, cache_dtype="auto"),
            compilation_config=SimpleNamespace(
                cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"),
                max_cudagraph_capture_size=3,
            ),
            speculative_config=(
                SimpleNamespace(method="ngram", num_speculative_tokens=2)
                if args.speculative_config
                else None
            ),
        )
        print("INFO Using FLASH_ATTN attention backend out of potential backends", flush=True)

    @classmethod
    def from_engine_args(cls, args: Any) -> "LLM":
        """Start."""
        return cls(args)

    def sleep(self, level: int) -> None:
        """Pause."""
        assert level == 0
        self.asleep = True

    def wake_up(self, tags: list[str]) -> None:
        """Go on."""
        assert tags == ["scheduling"]
        self.asleep = False

    def add_request(self, name: str, prompt: dict[str, list[int]], parameters: Any) -> None:
        """Queue a prompt."""
        ids = prompt["prompt_token_ids"]
        assert parameters.ignore_eos
        assert not parameters.detokenize
        self.waiting.append(_Running(name, ids, parameters))

    def has_unfinished_requests(self) -> bool:
        """Whether a step has something to do."""
        return bool(self.waiting or self.rows)

    def step(self) -> list[Any]:
        """New requests join; every row gets its tokens."""
        assert not self.asleep
        time.sleep(0.001)
        behave = self.args.behave
        decoding = any(row.name.startswith("decode") for row in self.rows)
        if behave == "die" and decoding:
            print("(EngineCore pid=7) ERROR RuntimeError: CUDA error: device lost", flush=True)
            os._exit(1)
        if behave == "killed" and decoding:
            os.kill(os.getpid(), signal.SIGKILL)
        if behave == "hang" and decoding:
            time.sleep(600)
        if behave == "raise" and decoding:
            print("ERROR NotImplementedError: no kernel for this", flush=True)
            raise RuntimeError("EngineCore encountered an issue. See stack trace (above).")
        outputs = [self._advance(row) for row in list(self.rows)]
        while self.waiting:
            row = self.waiting.pop(0)
            self.rows.append(row)
            outputs.append(self._emit(row, 1))
        return outputs

    def get_metrics(self) -> list[Any]:
        """As vLLM's reader gives them."""
        found: list[Any] = [Counter(f"vllm:{name}", value) for name, value in self.counts.items()]
        if self.args.speculative_config:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            found.append(Vector(name, list(self.per_position)))
        return [*found, Gauge("vllm:kv_cache_usage", 0.5)]

    def _advance(self, row: _Running) -> Any:
        if not self.args.speculative_config:
            return self._emit(row, 1)
        self.counts["spec_decode_num_drafts"] += 1
        self.counts["spec_decode_num_draft_tokens"] += 2
        self.counts["spec_decode_num_accepted_tokens"] += 1
        self.per_position[0] += 1
        return self._emit(row, 2)

    def _emit(self, row: _Running, count: int) -> Any:
        new: list[int] = []
        reason = None
        for _ in range(count):
            last = row.out[-1] if row.out else row.ids[-1]
            row.out.append((last + 1) % VOCABULARY)
            new.append(row.out[-1])
            if row.out[-1] in row.parameters.stop_token_ids:
                reason = "stop"
            elif len(row.out) == row.parameters.max_tokens:
                reason = "length"
            if reason:
                self.rows.remove(row)
                break
        completion = SimpleNamespace(token_ids=new, finish_reason=reason)
        reads = not row.parameters.skip_reading_prefix_cache
        return SimpleNamespace(
            request_id=row.name,
            outputs=[completion],
            finished=reason is not None,
            num_cached_tokens=len(row.ids) // 16 * 16 if reads else 0,
        )


@dataclass
class Counter:
    """A number that grows."""

    name: str
    value: int


@dataclass
class Gauge:
    """A number that moves."""

    name: str
    value: float


@dataclass
class Vector:
    """Numbers that grow."""

    name: str
    values: list[int]
