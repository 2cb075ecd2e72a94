"""Passes of the method's settings on one loaded engine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.bench.lossless import Forced, first_divergence, is_exact
from specbench.bench.watchdog import Watchdog
from specbench.engine.generate import Generated, Progress, Request, generate
from specbench.engine.sampling import Sampling
from specbench.errors import SpecbenchError
from specbench.methods.autoregressive import Autoregressive
from specbench.results.degenerate import is_degenerate
from specbench.tune.sample import LossyError, Sample
from specbench.tune.space import Setting, Space

if TYPE_CHECKING:
    from specbench.config import RunConfig
    from specbench.engine.engine import Engine
    from specbench.methods.base import EngineMethod


class EngineMeasure:
    """Runs settings over the tuning prompts; the model stays loaded.

    Parameters
    ----------
    engine : Engine
    space : Space
    config : RunConfig
        Fully resolved.
    requests : sequence of Request
        The tuning prompts.

    Notes
    -----
    Losslessness is judged against an autoregressive pass that is made once. Prompts whose
    autoregressive output loops leave every setting's figures, unless none would remain.
    """

    def __init__(
        self, engine: "Engine", space: Space, config: "RunConfig", requests: Sequence[Request]
    ) -> None:
        self.engine = engine
        self.space = space
        self.config = config
        self.requests = list(requests)
        self._full = min(engine.batch.rows, len(self.requests))
        self._method: EngineMethod | None = None
        self._warm: set[object] = set()
        self._reference: dict[int, list[int]] | None = None
        self._looping: frozenset[int] = frozenset()
        self._forced = Forced(engine)

    def __call__(self, setting: Setting, repeat: int) -> Sample:
        """One pass of `setting`, warmed before its first."""
        if self._reference is None:
            self._reference = self._decode_reference()
        method = self.space.build(setting, self.config)
        # on the CPU nothing is compiled or captured for a setting, so that one warm-up is enough
        shape = None if self.engine.device.type == "cpu" else setting.key
        if shape not in self._warm:
            short = [
                replace(r, max_new_tokens=min(method.gamma + 3, r.max_new_tokens))
                for r in self.requests[: self._full]
            ]
            self._decode(method, short, 0)
            self._warm.add(shape)
        generated = self._decode(method, self.requests, repeat)
        if method.lossless and self.config.temperature == 0:
            self._judge(generated)
        return self._sample(generated)

    def close(self) -> None:
        """Free what the last setting allocated; the engine stays."""
        if self._method is not None:
            self._method.unbind()
            self._method = None

    def _decode(
        self, method: "EngineMethod", requests: Sequence[Request], repeat: int
    ) -> list[Generated]:
        self.close()
        self._method = method
        self.engine.use(method, Sampling.from_config(self.config, repeat))
        with Watchdog(self.config.timeout, _end) as dog:
            progress = dog.listen(Progress())
            return list(dog.watch(generate(self.engine, requests, progress, fresh=False)))

    def _decode_reference(self) -> dict[int, list[int]]:
        method = Autoregressive(Autoregressive.parameters_type())
        outputs = {g.request.index: g.output_ids for g in self._decode(method, self.requests, 0)}
        looping = frozenset(index for index, ids in outputs.items() if is_degenerate(ids))
        self._looping = looping if len(looping) < len(outputs) else frozenset()
        return outputs

    def _judge(self, generated: Sequence[Generated]) -> None:
        assert self._reference is not None
        pairs = [(g.request, g.output_ids, self._reference[g.request.index]) for g in generated]
        parted = [
            (request, ours, base)
            for request, ours, base in pairs
            if first_divergence(ours, base) is not None
        ]
        if not parted:
            return
        request, ours, base = parted[0]
        at = first_divergence(ours, base)
        if is_exact(self.config):
            raise LossyError(
                f"the output of prompt {request.item_id!r} differs from the target's at token {at}"
            )
        threshold = self._forced.threshold(
            [self._forced(request.token_ids, base) for request, _, base in pairs]
        )
        for request, ours, _ in parted:
            worst = max(self._forced(request.token_ids, ours).below)
            if worst > threshold or not self._forced.complete(request, ours):
                raise LossyError(
                    f"the output of prompt {request.item_id!r} is not the target's: a token lies "
                    f"{worst:.3g} below its best logit, {threshold:.3g} is allowed"
                )

    def _sample(self, generated: Sequence[Generated]) -> Sample:
        healthy = sorted(
            (g for g in generated if g.request.index not in self._looping),
            key=lambda g: g.request.index,
        )
        tokens, seconds = 0, 0.0
        per_token: list[float] = []
        histograms = []
        for g in healthy:
            steps = g.times.steps
            for step, running, committed in zip(
                steps.step_s, steps.running, g.committed, strict=True
            ):
                if running == self._full:
                    tokens += committed
                    seconds += step / running
            if g.committed:
                per_token.append(sum(steps.step_s) / sum(g.committed))
            counts = [0] * (max(g.committed, default=0) + 1)
            for committed in g.committed:
                counts[committed] += 1
            histograms.append(tuple(counts))
        if not tokens or not per_token:
            raise SpecbenchError(
                "no step decoded the whole batch: raise --num-prompts or --max-new-tokens, or "
                "lower --batch-size"
            )
        return Sample(
            throughput=tokens / seconds,
            tpot_ms=1000 * sum(per_token) / len(per_token),
            histograms=tuple(histograms),
        )


def _end(message: str) -> None:
    """End this worker; its trial is then failed by the next one, and measured again once."""
    sys.stderr.write(f"specbench: error: {message}\n")
    sys.stderr.flush()
    os._exit(SpecbenchError.exit_status)
