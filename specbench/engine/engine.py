"""The engine: prefill, and one iteration of draft, verify, accept, commit, observe."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from specbench.config import AttentionBackend
from specbench.engine.acceptance import choose_token
from specbench.engine.batch import Batch
from specbench.engine.compute import make_compute
from specbench.engine.graph import Outbox, capture
from specbench.engine.iteration import iterate
from specbench.engine.kv_cache import KVCache, pages_for
from specbench.engine.model import Attention, Transformer
from specbench.engine.phases import Phases
from specbench.engine.prefill import prefill
from specbench.engine.random import Purpose
from specbench.engine.row_pages import RowPages
from specbench.engine.sampling import Sampling, invalid
from specbench.errors import ContextTooLongError
from specbench.methods.base import EngineMethod

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True)
class StepResult:
    """One iteration as the host reads it, a list entry a row.

    Attributes
    ----------
    tokens : list of list of int
        The committed tokens; empty for a row without a request.
    drafted, accepted : list of int
    ended : list of bool
        The request is complete.
    invalid : list of bool
        The target's logits could not be used (NaN or infinite).
    """

    tokens: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    ended: list[bool]
    invalid: list[bool]


class Engine:
    """A model, its paged KV cache and the rows that decode together.

    Parameters
    ----------
    model : Transformer
    rows : int
        Requests that decode together, at most.
    max_len : int
        Prompt and new tokens of a request, at most.
    max_new_tokens : int, optional
        New tokens of a request, at most; by default as many as `max_len`. A method that keeps what
        was generated beside a selection of the prompt sizes its lists by it.
    ignore_eos : bool
        Decode to the length limit.
    prefill_chunk : int
        Prompt tokens a prefill forward.
    spare : int
        Cache entries a request beyond its tokens: where the nodes of a tree stand while they are
        verified.
    backend : {"auto", "triton", "flash-attn", "sdpa"}
        What computes the forwards; see `make_compute`.
    graphs : bool
        Run an iteration as one CUDA graph where compute and method allow it.
    keep_prompts : bool
        Keep the KV of prompts while there is room, for later requests of the same ones.
    kept_tokens : int
        Room for them beyond what the rows need.

    Notes
    -----
    Everything an iteration reads and writes is a device tensor of fixed shape, and no decision
    inside it is taken by the host, so that it can be captured as one CUDA graph. The reference
    kernels are the exception: they loop over requests and read lengths on the host.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        rows: int,
        max_len: int,
        max_new_tokens: int | None = None,
        ignore_eos: bool = False,
        prefill_chunk: int = 512,
        spare: int = 0,
        backend: AttentionBackend = "auto",
        graphs: bool = True,
        keep_prompts: bool = False,
        kept_tokens: int = 0,
    ) -> None:
        parameter = next(model.parameters())
        self.model = model
        self.config = model.config
        self.dtype, self.device = parameter.dtype, parameter.device
        self.max_len = max_len
        self.max_new_tokens = min(max_new_tokens or max_len, max_len)
        self.prefill_chunk = prefill_chunk
        self.spare = spare
        self.scale = self.config.head_dim**-0.5
        pages = rows * pages_for(max_len + spare) + pages_for(kept_tokens)
        self.cache = KVCache(self.config, pages, self.dtype, self.device)
        self.eos = frozenset(() if ignore_eos else self.config.eos_ids)
        self.batch = Batch(rows, max_len, sorted(self.eos), self.device, spare)
        self.phases = Phases(enabled=self.device.type == "cpu")
        self.compute = make_compute(backend, model, self.cache)
        self._graphs = graphs
        self._captured: dict[EngineMethod, tuple[Sampling, CUDAGraph, Tensor]] = {}
        self._outbox = Outbox()
        # measurements leave out what the method does to choose
        self.frozen = False
        self.pages = RowPages(self.cache, keep_prompts)
        self._drafters: dict[Hashable, Any] = {}

    @property
    def attention_backend(self) -> str:
        """What the kernels are, for the records."""
        return self.compute.name

    def graph_mode(self, method: EngineMethod) -> str:
        """How `method` is run: ``full``, one graph an iteration, or ``eager``."""
        able = self.device.type == "cuda" and self.compute.capturable and method.capturable
        return "full" if able and self._graphs else "eager"

    def use(self, method: EngineMethod, sampling: Sampling) -> None:
        """Decode with `method` from now on; every row must be empty.

        Raises
        ------
        ValueError
            The method's trees are larger than the entries that are spare.
        """
        if method.nodes > self.spare:
            raise ValueError(
                f"{method.name} verifies trees of {method.nodes} nodes: make the engine with "
                f"spare={method.nodes}, not {self.spare}"
            )
        self.method = method
        self.sampling = sampling
        if self.graph_mode(method) == "eager":
            method.bind(self)
            return
        known = self._captured.get(method)
        if known is not None and known[0].draws_like(sampling) and method.is_bound_to(self):
            return
        self._captured.pop(method, None)
        method.bind(self)
        self._capture()

    def drafter(self, name: Hashable, load: Callable[[], M]) -> M:
        """The weights of a draft, loaded once for all methods of this engine that name them so."""
        if name not in self._drafters:
            self._drafters[name] = load()
        found: M = self._drafters[name]
        return found

    def forget(self, method: EngineMethod) -> None:
        """Give up what was captured for `method`, before it is unbound."""
        self._captured.pop(method, None)

    @torch.inference_mode()
    def admit(
        self,
        row: int,
        request: int,
        token_ids: list[int],
        max_new_tokens: int,
        on_chunk: Callable[[int], None] | None = None,
        fresh: bool = False,
    ) -> int:
        """Prefill a prompt into an empty row and start its decoding.

        Parameters
        ----------
        row : int
        request : int
            Keys the request's random numbers.
        token_ids : list of int
        max_new_tokens : int
        on_chunk : callable, optional
            Told the number of tokens after each prefill forward.
        fresh : bool
            Prefill the whole prompt, also one that is kept.

        Returns
        -------
        int
            The first new token; -1 if the logits were invalid, and then the row stays empty.

        Raises
        ------
        ContextTooLongError
            The prompt and the new tokens exceed `max_len`, or these `max_new_tokens`.
        """
        total = len(token_ids) + max_new_tokens
        if total > self.max_len:
            raise ContextTooLongError(
                f"a prompt of {len(token_ids)} tokens and {max_new_tokens} new ones exceed the "
                f"{self.max_len} tokens that the engine reserved for a request"
            )
        if max_new_tokens > self.max_new_tokens:
            raise ContextTooLongError(
                f"{max_new_tokens} new tokens exceed the {self.max_new_tokens} that the engine was "
                "made for"
            )
        known = len(token_ids) - self.method.prompt_tail
        there = 0 if fresh else known
        self.batch.reserve(row, self.pages.reserve(row, token_ids, there, total + self.spare))
        self.batch.record(row, token_ids)
        begin = self.pages.reused(row)
        if on_chunk and begin:
            on_chunk(begin)
        for hidden in prefill(self, row, token_ids, begin, self.method):
            if on_chunk:
                on_chunk(hidden.shape[1])
        logits = self.compute.logits(hidden[:, -1])
        key = torch.tensor([request], device=self.device)
        start = torch.full_like(key, len(token_ids) - 1)
        first, _ = choose_token(logits, self.sampling, key, start, drawn=self.compute.sample)
        token, bad = torch.stack([first, invalid(logits).long()]).flatten().tolist()
        if bad:
            self.release(row)
            return -1
        self.pages.keep_prompt(row, known)
        self.batch.admit(row, request, len(token_ids), token, max_new_tokens - 1)
        self.method.admit(row, self.batch)
        return int(token)

    def release(self, row: int) -> None:
        """Empty a row and give its pages back."""
        self.batch.release(row)
        self.pages.release(row)

    def release_all(self) -> None:
        """Empty every row, and forget what is not collected."""
        self._outbox.clear()
        for row in self.pages.taken:
            self.release(row)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every KV page has one owner, and the rows' tables say which.

        It reads the tables on the host, so it waits for the device.
        """
        self.cache.check_integrity()
        self.pages.check_integrity(self.batch.block_table.tolist())

    def step(self) -> StepResult:
        """One iteration over every row that has a request."""
        self.launch()
        return self.collect()

    @property
    def overlaps(self) -> bool:
        """Whether an iteration can be launched before the one before it is collected."""
        return self.method in self._captured

    @torch.inference_mode()
    def launch(self) -> None:
        """Start an iteration; what rows it finds empty or ended stay so."""
        captured = self._captured.get(self.method)
        if captured is None:
            self.phases.reset()
            self._outbox.send(iterate(self))
            return
        _, graph, result = captured
        graph.replay()
        self._outbox.send(result)

    def collect(self) -> StepResult:
        """The oldest launched iteration that was not collected yet, once it is done."""
        rows = self._outbox.receive()
        return StepResult(
            tokens=[row[5 : 5 + row[0]] for row in rows],
            accepted=[row[1] for row in rows],
            drafted=[row[2] for row in rows],
            ended=[bool(row[3]) for row in rows],
            invalid=[bool(row[4]) for row in rows],
        )

    def within(self, positions: Tensor) -> Tensor:
        """Positions that the tables have: masked rows may point past them, to no effect."""
        return positions.clamp(0, self.max_len - 1)

    def next_tokens(
        self, tokens: Tensor, position: Tensor, attention: Attention, offset: int
    ) -> tuple[Tensor, Tensor | None]:
        """What follows one token a row, for a draft.

        Parameters
        ----------
        tokens : Tensor
            int64 `[R]`.
        position : Tensor
            int64 `[R, 1]`, `within` the tables.
        attention : Attention
        offset : int
            The draft's place in the iteration; keys its random numbers.

        Returns
        -------
        token : Tensor
            int64 `[R]`.
        probs : Tensor or None
            `[R, V]`, the distribution that it was drawn from; None at temperature 0.
        """
        if self.sampling.greedy:
            best, _ = self.compute.best(tokens[:, None], position, attention)
            return best[:, 0], None
        hidden = self.compute.hidden(tokens[:, None], position, attention)
        return self.pick(self.compute.logits(hidden[:, 0]), offset)

    def pick(self, logits: Tensor, offset: int) -> tuple[Tensor, Tensor | None]:
        """Draft tokens `[R]` from logits `[R, V]`, and their distribution where it is random."""
        keys = self.batch.request, self.batch.lengths, offset, Purpose.DRAFT
        return choose_token(logits, self.sampling, *keys, self.compute.sample)

    def _capture(self) -> None:
        """One graph of an iteration; the rows are empty, so that running it alters nothing."""
        if not self._captured:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.inference_mode():
            graph, result = capture(partial(iterate, self), self._pool)
        self._captured[self.method] = self.sampling, graph, result
