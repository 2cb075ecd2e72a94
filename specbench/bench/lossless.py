"""The losslessness verdict of each request: token equality, or the target's own judgement.

Two tiers. In float32 on the CPU a method's output must equal the autoregressive arm's, token by
token. In half precision the shape of a forward changes the rounding, so there each token is judged
by feeding the output to the target (teacher forcing): its logit may lie below the maximum by no
more than twice what the autoregressive arm's own tokens show under the same forcing, which is a
control at another shape. The threshold has a floor, since a control of a few tokens may show
nothing by luck, and a ceiling, since a broken control must not excuse anything: both in units of
the dtype's rounding of the largest logit.

Of an arm that another engine runs, the agreement with the autoregressive arm is recorded, no
verdict: its kernels round differently, and its losslessness is its own project's business.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import torch

from specbench.bench.arms import Arm
from specbench.bench.workload import Workload
from specbench.config import RunConfig
from specbench.engine.engine import Engine
from specbench.engine.generate import Request
from specbench.engine.prefill import score
from specbench.engine.sampling import invalid
from specbench.errors import NumericalError
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE
from specbench.results.records import LosslessRecord, RequestRecord
from specbench.results.store import RunStore, record_key

CONTROL_FACTOR = 2.0
FLOOR_ULPS, CEILING_ULPS = 4.0, 32.0
SAMPLED = (
    "temperature above 0: outputs are random, and the distribution is tested, not the run "
    "(docs/methodology.md)"
)
NO_BASELINE = "no autoregressive output to compare with"


@dataclass(frozen=True)
class Margins:
    """How an output looks to the target, an entry a token.

    Attributes
    ----------
    below : list of float
        Distance of the token's logit from the maximum; 0 for the arg-max.
    top2 : list of float
        Distance of the two best logits.
    largest : float
        The largest absolute logit among the maxima, which sets the size of rounding.
    """

    below: list[float]
    top2: list[float]
    largest: float


class Judge:
    """Judges every repeat of every lossless arm and appends the verdicts."""

    def __init__(self, config: RunConfig, engine: Engine, store: RunStore) -> None:
        self.config = config
        self.engine = engine
        self.store = store
        self.exact = is_exact(config)
        self._planned = True
        self._outputs = {r.key: r for r in store.load_requests()}
        self._force = Forced(engine)

    def run(self, arms: list[Arm], workloads: list[Workload]) -> None:
        """Append the verdicts that are not on record yet.

        Where the baseline is planned but failed there is none: a resume tries it again.
        """
        self._planned = any(arm.name == AUTOREGRESSIVE for arm in arms)
        known = {record_key(record) for record in self.store.load_lossless()}
        for workload in workloads:
            for arm in arms:
                judged = arm.method.lossless and arm.name != AUTOREGRESSIVE
                if not judged and isinstance(arm.method, EngineMethod):
                    continue
                for repeat in range(self.config.repeats):
                    for record in self._judge(arm, workload, repeat):
                        if record_key(record) not in known:
                            self.store.append_lossless(record)

    def _judge(self, arm: Arm, workload: Workload, repeat: int) -> Iterator[LosslessRecord]:
        dataset, served = workload.info.name, not isinstance(arm.method, EngineMethod)
        pairs = []
        for request in workload.requests:
            ours = self._outputs.get((arm.name, dataset, repeat, request.index))
            base = self._outputs.get((AUTOREGRESSIVE, dataset, repeat, request.index))
            if ours is None:
                continue
            if base is not None and self.config.temperature == 0:
                pairs.append((request, ours, base))
            elif self.config.temperature > 0 and not served:
                yield _unchecked(ours, SAMPLED)
            elif not (served or self._planned):
                yield _unchecked(ours, NO_BASELINE)
        if served or self.exact:
            for request, ours, base in pairs:
                yield self._compared(request.token_ids, ours, base, served)
        else:
            yield from self._teacher_forced(pairs)

    def _compared(
        self, prompt: list[int], ours: RequestRecord, base: RequestRecord, served: bool
    ) -> LosslessRecord:
        """Token equality and the margin where it ends: a verdict, or the agreement of others."""
        at = first_divergence(ours.output_ids, base.output_ids)
        forced = self._force(prompt, base.output_ids[: at + 1]) if at is not None else None
        return _verdict(
            ours,
            "agreement" if served else "exact",
            lossless=None if served else at is None,
            identical=at is None,
            first_divergence=at,
            top2_margin=forced.top2[-1] if forced else None,
        )

    def _teacher_forced(
        self, pairs: list[tuple[Request, RequestRecord, RequestRecord]]
    ) -> Iterator[LosslessRecord]:
        control = [self._force(request.token_ids, base.output_ids) for request, _, base in pairs]
        threshold = self._force.threshold(control)
        for (request, ours, base), base_margins in zip(pairs, control, strict=True):
            at = first_divergence(ours.output_ids, base.output_ids)
            margins = base_margins
            if at is not None:
                margins = self._force(request.token_ids, ours.output_ids)
            worst = max(margins.below)
            yield _verdict(
                ours,
                "teacher-forced",
                lossless=worst <= threshold and self._force.complete(request, ours.output_ids),
                identical=at is None,
                first_divergence=at,
                top2_margin=None if at is None else margins.top2[min(at, len(margins.top2) - 1)],
                worst_margin=worst,
                threshold=threshold,
            )


class Forced:
    """Margins of outputs under teacher forcing, computed once for equal outputs.

    Greedy repeats and all arms share the baseline's.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Margins] = {}

    def __call__(self, prompt: list[int], output: list[int]) -> Margins:
        """What the target says of `output` after `prompt`."""
        key = tuple(prompt), tuple(output)
        if key not in self._known:
            self._known[key] = teacher_force(self.engine, prompt, output)
        return self._known[key]

    def threshold(self, control: list[Margins]) -> float:
        """How far a token may lie below the maximum, from the baseline's own margins."""
        noise = max((max(margins.below) for margins in control), default=0.0)
        largest = max((margins.largest for margins in control), default=0.0)
        ulp = largest * torch.finfo(self.engine.dtype).eps
        return min(max(CONTROL_FACTOR * noise, FLOOR_ULPS * ulp), CEILING_ULPS * ulp)

    def complete(self, request: Request, output: list[int]) -> bool:
        """Whether an output ends where it must: at its first EOS or at the length limit."""
        ends = [place for place, token in enumerate(output) if token in self.engine.eos]
        if ends:
            return ends[0] == len(output) - 1
        return len(output) == request.max_new_tokens


def is_exact(config: RunConfig) -> bool:
    """Whether outputs must be equal token by token: nothing but rounding could part them."""
    return config.device == "cpu" and config.dtype in ("float32", "float64")


def teacher_force(engine: Engine, prompt: list[int], output: list[int]) -> Margins:
    """What the target says of `output` after `prompt`, in one pass over both.

    Raises
    ------
    NumericalError
        Logits that nothing can be judged by: a NaN is neither above nor below a threshold.
    """
    below: list[float] = []
    top2: list[float] = []
    largest = 0.0
    for logits, tokens in score(engine, prompt, output):
        bad = invalid(logits)
        if bool(bad.any()):
            raise NumericalError(
                f"under teacher forcing the target's logits of output token "
                f"{len(below) + int(bad.long().argmax())} are NaN or infinite; check the weights "
                "and the dtype"
            )
        best = logits.topk(2, dim=-1).values
        chosen = logits.gather(-1, tokens[:, None]).squeeze(-1)
        below += (best[:, 0] - chosen).tolist()
        top2 += (best[:, 0] - best[:, 1]).tolist()
        largest = max(largest, float(best[:, 0].abs().max()))
    return Margins(below, top2, largest)


def first_divergence(ours: list[int], base: list[int]) -> int | None:
    """The first place where two outputs differ, also by ending; None where they are equal."""
    for place, (a, b) in enumerate(zip_longest(ours, base)):
        if a != b:
            return place
    return None


def _unchecked(ours: RequestRecord, reason: str) -> LosslessRecord:
    return _verdict(
        ours,
        "unchecked",
        lossless=None,
        identical=None,
        reason=reason,
    )


def _verdict(
    ours: RequestRecord,
    tier: Literal["exact", "teacher-forced", "agreement", "unchecked"],
    **details: Any,
) -> LosslessRecord:
    return LosslessRecord(
        arm=ours.arm,
        dataset=ours.dataset,
        repeat=ours.repeat,
        index=ours.index,
        tier=tier,
        **details,
    )
