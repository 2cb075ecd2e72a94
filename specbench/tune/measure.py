"""Passes of the method's settings on one loaded engine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
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
    from specbench.bench.backends import EngineHost
    from specbench.config import RunConfig
    from specbench.engine.engine import Engine
    from specbench.methods.base import EngineMethod

KEPT = 2
"""Settings that are bound to the engine at once."""


class EngineMeasure:
    """Runs settings over the tuning prompts; the model stays loaded.

    Of the last two settings, the candidate and the best, what was captured or compiled for them is
    kept, since their passes take turns.

    Parameters
    ----------
    host : EngineHost
        Its engine is loaded for the first pass.
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
        self, host: "EngineHost", space: Space, config: "RunConfig", requests: Sequence[Request]
    ) -> None:
        self.host = host
        self.space = space
        self.config = config
        self.requests = list(requests)
        self._full = min(host.plan.rows, len(self.requests))
        self._bound: dict[object, EngineMethod] = {}
        self._warm = False
        self._reference: dict[int, list[int]] | None = None
        self._looping: frozenset[int] = frozenset()

    @property
    def engine(self) -> "Engine":
        """The engine, with its weights."""
        return self.host.engine

    @cached_property
    def _forced(self) -> Forced:
        return Forced(self.engine)

    def __call__(self, setting: Setting, repeat: int) -> Sample:
        """One pass of `setting`, warmed before its first."""
        if self._reference is None:
            self._reference = self._decode_reference()
        method = self._bound.pop(setting.key, None)
        # on the CPU nothing is compiled or captured for a setting, so that one warm-up is enough
        cold = not self._warm or (method is None and self.engine.device.type != "cpu")
        if method is None:
            self._release(keep=KEPT - 1)
            method = self.space.build(setting, self.config)
        self._bound[setting.key] = method
        try:
            if cold:
                short = [
                    replace(r, max_new_tokens=min(method.gamma + 3, r.max_new_tokens))
                    for r in self.requests[: self._full]
                ]
                self._decode(method, short, 0)
                self._warm = True
            generated = self._decode(method, self.requests, repeat)
        except BaseException:
            # out of memory, say: what it holds is the next setting's
            self._free(self._bound.pop(setting.key))
            raise
        if method.lossless and self.config.temperature == 0:
            self._judge(generated)
        return self._sample(generated)

    def close(self) -> None:
        """Free what the last settings allocated, and let go of the engine."""
        self._release(keep=0)
        vars(self).pop("_forced", None)

    def _release(self, keep: int) -> None:
        """Free what all but the last `keep` settings allocated."""
        while len(self._bound) > keep:
            self._free(self._bound.pop(next(iter(self._bound))))

    def _free(self, method: "EngineMethod") -> None:
        self.engine.forget(method)
        method.unbind()

    def _decode(
        self, method: "EngineMethod", requests: Sequence[Request], repeat: int
    ) -> list[Generated]:
        self.engine.use(method, Sampling.from_config(self.config, repeat))
        with Watchdog(self.config.timeout, _end) as dog:
            progress = dog.listen(Progress())
            return list(dog.watch(generate(self.engine, requests, progress, fresh=False)))

    def _decode_reference(self) -> dict[int, list[int]]:
        method = Autoregressive(Autoregressive.parameters_type())
        outputs = {g.request.index: g.output_ids for g in self._decode(method, self.requests, 0)}
        self._free(method)
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
