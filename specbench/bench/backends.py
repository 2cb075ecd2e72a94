"""The engines of a run: who runs which arm, and whose turn it is to hold memory."""

import gc
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

from specbench.bench.arms import Arm
from specbench.bench.backend import Backend
from specbench.bench.memory import PeakMemory, spare_entries
from specbench.bench.residency import HEADROOM_TOKENS
from specbench.bench.status import classify
from specbench.engine.generate import Generated, Progress, Request, generate
from specbench.errors import OutOfMemoryError
from specbench.methods.base import EngineMethod
from specbench.methods.vllm.method import Vllm
from specbench.results.records import Status

if TYPE_CHECKING:
    from specbench.bench.plan import Plan
    from specbench.bench.servers import Servers
    from specbench.engine.engine import Engine
    from specbench.engine.model import Transformer
    from specbench.engine.probe import Probe
    from specbench.engine.sampling import Sampling
    from specbench.methods.vllm.backend import VllmBackend


class Weights:
    """The model of a plan, loaded when the first engine wants it."""

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self._model: Transformer | None = None

    @property
    def model(self) -> "Transformer":
        """With positions for the plan's longest request; see `load_model`."""
        if self._model is None:
            from specbench.engine.loader import load_model

            config = self._plan.config
            self._model = load_model(
                config.model,
                device=str(config.device),
                dtype=self._plan.dtype,
                max_len=self._plan.max_len,
                revision=config.model_revision,
                rope_scaling=config.rope_scaling,
                seed=config.seed,
                trust_remote_code=config.trust_remote_code,
            ).model
        return self._model


class EngineHost:
    """specbench's own engine, loaded when it is wanted and unloaded when another has the turn.

    Parameters
    ----------
    plan : Plan
    weights : Weights, optional
        Those that the engines of several plans share, and that outlive this one.
    """

    def __init__(self, plan: "Plan", weights: Weights | None = None) -> None:
        self.plan = plan
        self._shared = weights
        self._engine: Engine | None = None

    @property
    def engine(self) -> "Engine":
        """The engine with its weights.

        Raises
        ------
        SpecbenchError
            See `load_model`; OutOfMemoryError also where the KV cache does not fit.
        """
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def forget(self, method: EngineMethod) -> None:
        """Free what the engine, if it is loaded, captured for `method`."""
        if self._engine is not None:
            self._engine.forget(method)

    def close(self) -> None:
        """Free the KV cache, and weights that are not shared."""
        if self._engine is None:
            return
        self._engine = None
        self.give_back()

    def give_back(self) -> None:
        """Return to the device what is no longer referred to, for other processes to have."""
        gc.collect()
        if self.plan.config.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _load(self) -> "Engine":
        from specbench.engine.engine import Engine

        config, plan = self.plan.config, self.plan
        weights = self._shared or Weights(plan)
        model = weights.model
        try:
            return Engine(
                model,
                rows=plan.rows,
                max_len=plan.max_len,
                max_new_tokens=max(r.max_new_tokens for w in plan.workloads for r in w.requests),
                ignore_eos=config.ignore_eos,
                prefill_chunk=config.prefill_chunk,
                spare=spare_entries([arm.method for arm in plan.arms]),
                backend=config.attention_backend,
                graphs=config.graphs,
                keep_prompts=config.reuse_prompts,
                kept_tokens=plan.kept_tokens,
            )
        except Exception as error:
            status, message = classify(error)
            if status is not Status.OOM:
                raise
            raise OutOfMemoryError(message) from error


class EngineBackend(Backend):
    """An arm in specbench's own engine, which all such arms share."""

    graph_mode = attention_backend = "unknown"

    def __init__(self, host: EngineHost, method: EngineMethod) -> None:
        self.host = host
        self.method = method
        self._peak = PeakMemory(host.plan.config.device or "cpu")

    def open(self) -> None:
        """Load the engine."""
        engine = self.host.engine
        self.graph_mode = engine.graph_mode(self.method)
        self.attention_backend = engine.attention_backend

    def close(self) -> None:
        """Free the engine, and with it what the method holds of it."""
        self.host.forget(self.method)
        self.method.unbind()
        self.host.close()

    def recover(self) -> None:
        """Free what the method allocated and captured; the weights and the KV cache stay."""
        self.host.forget(self.method)
        self.method.unbind()
        with suppress(RuntimeError):  # a device that is beyond it fails the next arm, not the run
            self.host.give_back()

    def generate(
        self,
        requests: Sequence[Request],
        sampling: "Sampling",
        progress: Progress,
        segment: int,
        fresh: bool = True,
    ) -> Generator[Generated]:
        """Continuous batching in this process."""
        engine = self.host.engine
        engine.use(self.method, sampling)
        return generate(engine, requests, progress, segment, fresh)

    def overhead(self, requests: Sequence[Request], sampling: "Sampling") -> "Probe | None":
        """By a probe of the engine, the batch prefilled for it."""
        if self.graph_mode == "eager":
            return None
        from specbench.engine.probe import probe

        engine = self.host.engine
        engine.use(self.method, sampling)
        try:
            for row, request in enumerate(requests):
                engine.admit(row, request.index, request.token_ids, request.max_new_tokens)
            # the first sets come from the prompt, those of a verification are what is measured
            engine.step()
            return replace(probe(engine), copy_bytes_per_s=_copy_bandwidth())
        finally:
            engine.release_all()

    @property
    def warm_tokens(self) -> int:
        """One iteration, and one with fewer drafts."""
        return self.method.gamma + 3

    def reset_peak(self) -> None:
        """Of the allocator, or of this process."""
        self._peak.reset()

    def peak_memory(self) -> int | None:
        """Since `reset_peak`."""
        return self._peak.read()


def _copy_bandwidth() -> float | None:
    """The device's, by what it has free; None where that is too little to outgrow its cache."""
    import torch

    from specbench.bench.kernels.timing import copy_bandwidth

    torch.cuda.empty_cache()
    nbytes = min(2**30, torch.cuda.mem_get_info()[0] // 4)
    if nbytes < 2**28:
        return None
    found = median(copy_bandwidth(nbytes, repeats=3))
    # what the copies held is not the engine's
    torch.cuda.empty_cache()
    return found


class Backends:
    """A backend for every arm; closed like a file.

    With it every other process ends, but for `servers`, which are kept for the next plan.
    """

    def __init__(
        self, plan: "Plan", host: EngineHost, folder: Path, servers: "Servers | None" = None
    ) -> None:
        self._exclusive = (servers or plan.residency).exclusive
        self._backends: dict[str, Backend] = {}
        for arm in plan.arms:
            if isinstance(arm.method, EngineMethod):
                self._backends[arm.name] = EngineBackend(host, arm.method)
            elif isinstance(arm.method, Vllm):
                self._backends[arm.name] = _vllm(arm, arm.method, plan, folder, servers)
            else:
                raise TypeError(f"nothing runs the method {arm.method.name}")

    def __getitem__(self, arm: Arm) -> Backend:
        """The arm's backend, not yet open."""
        return self._backends[arm.name]

    def open(self, arm: Arm) -> Backend:
        """The arm's backend, open, the others closed where memory holds one at a time."""
        chosen = self[arm]
        if self._exclusive:
            for other in self._backends.values():
                shared = isinstance(other, EngineBackend) and isinstance(chosen, EngineBackend)
                if other is not chosen and not shared:
                    other.close()
        chosen.open()
        return chosen

    def close_served(self) -> None:
        """Be done with the engines of other processes."""
        for backend in self._backends.values():
            if not isinstance(backend, EngineBackend):
                backend.release()

    def __enter__(self) -> "Backends":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_served()


def _vllm(
    arm: Arm, method: Vllm, plan: "Plan", folder: Path, servers: "Servers | None"
) -> "VllmBackend":
    from specbench.methods.vllm.backend import VllmBackend, VllmJob

    share = plan.residency.shares[arm.name]
    room = (servers or plan).max_len + HEADROOM_TOKENS + method.gamma
    job = VllmJob(
        config=plan.config,
        name=arm.name,
        folder=folder,
        rows=plan.rows,
        max_len=min(room, plan.shape.context_length),
        eos=() if plan.config.ignore_eos else plan.shape.eos_ids,
        vocabulary=plan.shape.vocab_size,
        dummy=str(plan.config.model).startswith("dummy:"),
        share=servers.share(arm.name, share) if servers else share,
    )
    return VllmBackend(method, job, servers)
