"""Reports on NaN and infinite numbers: in logits, in the KV, in scores and in weights."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.bench.lossless import teacher_force
from specbench.engine.engine import Engine, StepResult
from specbench.engine.sampling import Sampling
from specbench.errors import NumericalError
from specbench.methods.base import EngineMethod
from specbench.methods.magicdec.stream import Stream
from tests.support.every_method import (
    EVERY,
    SPARSE,
    WITH_DRAFTER,
    Factory,
    drafter,
    engine_for,
    steps_of,
    tokens_of,
)
from tests.support.tiny import (
    GREEDY,
    RandomBlock,
    autoregressive,
    decode,
    longspec,
    longspec_tree,
    prompts,
    stream_draft,
    tiny_model,
    with_draft,
)

SAMPLED = Sampling(0.8, 0.95, seed=3)
VOCABULARY = 32
INVALID = pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
EVERY_METHOD = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


def steps(method: EngineMethod, sampling: Sampling, spoil: float | None) -> Iterator[StepResult]:
    """Iterations over two requests; the cached values of the first are spoilt."""
    engine = engine_for(method, tiny_model(7))
    engine.use(method, sampling)
    for row, ids in enumerate(prompts(7, [40, 70])):
        engine.admit(row, row, ids, 30)
    if spoil is not None:
        pages = engine.batch.block_table[0]
        engine.cache.values[:, pages[pages > 0]] = spoil
    for _ in range(3):
        yield engine.step()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["T=0", "T=0.8"])
@EVERY_METHOD
def test_a_bad_row_stays_alone_and_in_range(make: Factory, sampling: Sampling) -> None:
    """vllm#53029, PR#45060: a NaN became token id == vocabulary, and -1 tokens were accepted.

    The row is flagged in its first step, its tokens are tokens all the same, no count is negative,
    and its neighbour commits what it commits beside a sound row.
    """
    sound = steps(make(), sampling, None)
    spoilt = steps(make(), sampling, math.nan)
    for number, (good, bad) in enumerate(zip(sound, spoilt, strict=True)):
        assert bad.invalid == [True, False] or number > 0
        assert all(0 <= token < VOCABULARY for row in bad.tokens for token in row)
        for drafted, accepted in zip(bad.drafted, bad.accepted, strict=True):
            assert 0 <= accepted <= drafted
        for name in ("tokens", "drafted", "accepted", "invalid"):
            assert getattr(bad, name)[1] == getattr(good, name)[1]


@INVALID
@EVERY_METHOD
def test_the_engine_is_as_new_after_a_bad_request(make: Factory, value: float) -> None:
    """vllm#53029: the crash came steps later, from what the NaN had left behind.

    A prompt with a token of invalid embedding fills pages, scores, bounds and rings with it. It
    ends with an error that names it; what then takes its pages and its row decodes as if alone.
    """
    last = VOCABULARY - 1
    model = tiny_model(7)
    model.embed[last] = value
    model.head[last] = 0
    healthy, (sick,) = prompts(7, [40, 60, 17], last), prompts(8, [100], last)
    sick[60] = last
    if (name := next(n for n, m in EVERY.items() if m is make)) in WITH_DRAFTER:
        # a drafter that never proposes the token
        small = drafter(vocab_size=last)
        make = {
            "specextend, draft model": lambda: with_draft(small),
            "specextend, draft model, full": lambda: with_draft(small, collect="full", interval=1),
            "magicdec-stream, draft model": lambda: stream_draft(small),
        }[name]
    method = make()
    fresh = steps_of(decode(engine_for(method, model), method, healthy, [8, 14, 5]))
    method = make()
    engine = engine_for(method, model)
    with pytest.raises(NumericalError, match=r"request 'item-0' \(index 0\), (prefill|step \d)"):
        decode(engine, method, [sick, sick], 12)
    engine.cache.check_integrity()
    assert engine.cache.free_pages == engine.cache.num_pages
    for part in (engine.cache.keys, engine.cache.values):
        # masked writes, too: their page is nobody's
        part.fill_(value)
    assert steps_of(decode(engine, method, healthy, [8, 14, 5])) == fresh


def spoil(numbers: Tensor, generator: torch.Generator) -> None:
    """NaN, both infinities and overflow, everywhere."""
    kinds = torch.tensor([math.nan, math.inf, -math.inf, 3e38])
    drawn = torch.randint(len(kinds), numbers.shape, generator=generator)
    numbers.copy_(kinds[drawn].to(numbers.dtype))


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_bad_scores_choose_badly_and_alter_nothing(make: Factory) -> None:
    """What drafts read is a guess: scores and page bounds may be anything, outputs may not."""
    model, token_ids = tiny_model(7), prompts(7, [40, 70, 3])
    base, method = autoregressive(), make()
    expected = tokens_of(decode(engine_for(base, model), base, token_ids, 12))
    generator = torch.Generator().manual_seed(0)
    draft, spoilt = method.draft, []

    def draft_from_rubbish(batch: Any) -> Any:
        for owner in (method, getattr(method, "retrieval", None)):
            for name in ("scores", "norm", "page_min", "page_max"):
                numbers = getattr(owner, name, None)
                if isinstance(numbers, Tensor):
                    spoil(numbers, generator)
                    spoilt.append(name)
        return draft(batch)

    method.draft = draft_from_rubbish  # type: ignore[method-assign]
    assert tokens_of(decode(engine_for(method, model), method, token_ids, 12)) == expected
    assert spoilt or isinstance(method, Stream)


def block_of(kind: Factory, value: float) -> EngineMethod:
    """LongSpec with an invalid number in every weight of its block."""
    method = kind()
    assert isinstance(method, RandomBlock)
    load = method.load_block

    def load_spoilt(engine: Engine) -> Any:
        block = load(engine)
        for weight in block.parameters():
            weight.view(-1)[0] = value
        return block

    method.load_block = load_spoilt  # type: ignore[method-assign]
    return method


def spoilt_drafter(part: str, value: float) -> Any:
    model = drafter()
    getattr(model, part)[:5] = value
    return model


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["T=0", "T=0.8"])
@INVALID
def test_bad_draft_weights_cost_acceptance_alone(value: float, sampling: Sampling) -> None:
    """vllm PR#21876: NaN of a draft reached the sampler. Here a draft is only ever a guess.

    Every method commits the autoregressive output, token by token: a sampled chain too, as none of
    its drafts stands where all of their distribution is invalid. Where a part of it is, the output
    follows the target's distribution, and only its range is checked.
    """
    model, token_ids = tiny_model(7), prompts(7, [40, 3])
    base = autoregressive()
    expected = tokens_of(decode(engine_for(base, model), base, token_ids, 10, sampling))
    partly = stream_draft(spoilt_drafter("embed", value))
    for method in (
        block_of(longspec, value),
        block_of(longspec_tree, value),
        with_draft(spoilt_drafter("head", value)),
        with_draft(spoilt_drafter("embed", value)),
        stream_draft(spoilt_drafter("head", value)),
        partly,
    ):
        found = tokens_of(decode(engine_for(method, model), method, token_ids, 10, sampling))
        if sampling.greedy or method is not partly:
            assert found == expected
        assert all(0 <= token < VOCABULARY for ids in found.values() for token in ids)


def test_teacher_forcing_judges_by_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN is neither above nor below the threshold: as a margin it would have passed.

    Python's max() keeps the first of two numbers where one is NaN, so that an output with invalid
    logits in its middle was called lossless.
    """
    engine = Engine(tiny_model(7), rows=1, max_len=32)
    prompt, output = [1, 2, 3], [4, 4, 5, 4]
    assert len(teacher_force(engine, prompt, output).below) == 4
    real = engine.compute.logits

    def spoilt(hidden: Tensor) -> Tensor:
        logits = real(hidden)
        logits[2, 0] = math.nan
        return logits

    monkeypatch.setattr(engine.compute, "logits", spoilt)
    with pytest.raises(NumericalError, match="output token 2 are NaN or infinite"):
        teacher_force(engine, prompt, output)


@EVERY_METHOD
def test_a_checkpoint_of_nan_fails_at_the_first_prompt(make: Factory) -> None:
    """vllm#20531: weights with NaN gave empty outputs and no error."""
    model, method = tiny_model(7), make()
    model.final_norm[0] = math.nan
    with pytest.raises(NumericalError, match=r"request 'item-0' \(index 0\), prefill"):
        decode(engine_for(method, model), method, prompts(7, [40, 3]), 4)
