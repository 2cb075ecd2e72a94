"""MagicDec's stream at positions without gaps, over the target's KV or a small model's."""

import pytest
import torch
from pydantic import ValidationError

from specbench.bench.arms import build_arms
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.engine.rope_scaling import RopeScaling
from specbench.errors import ContextTooLongError, UsageError
from specbench.methods.draft_model.drafter import Drafter
from specbench.methods.magicdec.method import MagicDec
from specbench.methods.magicdec.stream_draft import StreamDraft
from tests.support.capture import no_host_decisions
from tests.support.dense import dense_logits
from tests.support.memory import peak_bytes
from tests.support.tiny import (
    GREEDY,
    autoregressive,
    decode,
    magicdec,
    prompts,
    stream_draft,
    tiny_model,
)

YARN = RopeScaling(type="yarn", factor=4.0, original_max_position=64)


def check_drafts(engine: Engine, method: MagicDec, steps: int = 4) -> None:
    """Drafts are what the target, one layer deep, says of the kept tokens as a text of their own.

    With one layer keys and values depend on tokens alone, so that nothing else is left to differ.
    """
    engine.use(method, GREEDY)
    whole = {}
    for row, ids in enumerate(prompts(1, [50, 5])):
        whole[row] = [*ids, engine.admit(row, row, ids, 30)]
    for _ in range(steps):
        draft = method.draft(engine.batch)
        assert draft is not None
        for row, tokens in whole.items():
            n = len(tokens) - 1
            text = tokens if n <= 9 else [*tokens[:3], *tokens[n - 6 :]]
            for token in draft.tokens[row].tolist():
                logits = dense_logits(engine.model, text)[-1]
                assert token == int(logits.argmax())
                text = [*text, token]
        for row, new in enumerate(engine.step().tokens):
            whole[row] += new


@pytest.mark.parametrize("scaling", [None, YARN])
def test_the_window_follows_upon_the_sinks(scaling: RopeScaling | None) -> None:
    model = tiny_model(2, num_layers=1, rope_scaling=scaling)
    method = magicdec("stream", gamma=3, budget=9, sinks=3, positions="cache-relative")
    check_drafts(Engine(model, rows=2, max_len=90), method)


def test_absolute_positions_are_others() -> None:
    method = magicdec("stream", gamma=3, budget=9, sinks=3)
    with pytest.raises(AssertionError):
        check_drafts(Engine(tiny_model(2, num_layers=1), rows=2, max_len=90), method)


def test_a_row_without_a_request_is_harmless() -> None:
    engine = Engine(tiny_model(2), rows=3, max_len=90)
    engine.cache.keys.fill_(torch.nan)
    engine.cache.values.fill_(torch.nan)
    method = magicdec("stream", gamma=3, positions="cache-relative")
    prompt = prompts(1, [40])
    ours = decode(engine, method, prompt, 20)[0].output_ids
    base = decode(Engine(tiny_model(2), rows=1, max_len=90), autoregressive(), prompt, 20)
    assert ours == base[0].output_ids


def test_the_target_as_its_own_small_model_is_accepted() -> None:
    model = tiny_model(3)
    engine = Engine(model, rows=2, max_len=120, prefill_chunk=16)
    method = stream_draft(model, gamma=5, budget=120)
    for outcome in decode(engine, method, prompts(3, [40, 23]), 31).values():
        assert outcome.accepted == [5] * 5


class Gathering(StreamDraft):
    """Gathers in every iteration, as if something were left out."""

    def bind(self, engine: Engine) -> None:
        super().bind(engine)
        self.whole = False


def test_what_is_kept_whole_is_gathered_once_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[None] = []
    gather = Drafter.gather
    monkeypatch.setattr(Drafter, "gather", lambda *args: gathered.append(gather(*args)))
    token_ids = prompts(3, [40, 23, 31])
    parameters = stream_draft(tiny_model(), gamma=5, budget=200).parameters
    found = []
    for kind in (StreamDraft, Gathering):
        gathered.clear()
        engine = Engine(tiny_model(3), rows=2, max_len=120, prefill_chunk=16)
        # the target's head on a little less
        drafter = tiny_model(3)
        drafter.layers[1].down.zero_()
        outcomes = decode(engine, kind(parameters, drafter), token_ids, [31, 12, 20])
        found.append([outcomes[i].accepted for i in range(3)])
        if kind is StreamDraft:
            assert len(gathered) == 3
    assert found[0] == found[1]
    assert max(map(max, found[0])) > 0


def test_a_small_model_reads_sinks_and_a_window() -> None:
    model = tiny_model(4, num_layers=1)
    method = stream_draft(model, gamma=3, budget=9, sinks=3)
    engine = Engine(model, rows=2, max_len=90)
    engine.use(method, GREEDY)
    whole = {}
    for row, ids in enumerate(prompts(1, [50, 5])):
        whole[row] = [*ids, engine.admit(row, row, ids, 30)]
    for _ in range(4):
        filled = method.drafter.filled.tolist()
        draft = method.draft(engine.batch)
        assert draft is not None
        for row, tokens in whole.items():
            n = filled[row]
            old = tokens[:n] if n <= 9 else [*tokens[:3], *tokens[n - 6 : n]]
            text = [*old, *tokens[n:]]
            for token in draft.tokens[row].tolist():
                assert token == int(dense_logits(model, text)[-1].argmax())
                text = [*text, token]
        method.drafter.filled.copy_(torch.tensor(filled))
        for row, new in enumerate(engine.step().tokens):
            whole[row] += new


def test_arms_and_what_is_refused() -> None:
    def arms(**settings: object) -> list:
        given = {"method": "magicdec", "baseline": False, "draft_model": "dummy:tiny"}
        return build_arms(build_config(given | settings))

    (arm,) = arms()
    assert isinstance(arm.method, StreamDraft)
    assert arm.name == "magicdec-stream"
    assert arm.info.parameters["positions"] == "cache-relative"
    assert arm.info.parameters["draft_model"] == "dummy:tiny"
    with pytest.raises(UsageError, match="--draft-model is no setting of magicdec-quest"):
        arms(variant="quest")
    with pytest.raises(UsageError, match="reads its KV cache-relative"):
        arms(positions="absolute")
    with pytest.raises(UsageError, match="--positions is no setting of magicdec-snapkv"):
        arms(variant="snapkv", draft_model=None, positions="absolute")
    with pytest.raises(ValidationError, match="16 sinks would leave no window"):
        stream_draft(tiny_model(), sinks=16)
    engine = Engine(tiny_model(1), rows=1, max_len=200)
    short = tiny_model(max_position_embeddings=100)
    with pytest.raises(ContextTooLongError, match=r"would read 109: lower --top-chunks, --budget"):
        engine.use(stream_draft(short, budget=100), GREEDY)


def test_the_planned_memory_covers_what_is_held() -> None:
    model = tiny_model(7, torch.float32, 4096, max_position_embeddings=4096)
    engine = Engine(model, rows=3, max_len=4000)
    method = stream_draft(model, budget=2000)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    batch, drafter = engine.batch, method.drafter
    for row in range(3):
        batch.reserve(row, engine.cache.allocate(4000))
        batch.admit(row, row, 3900, 1, 90)
        drafter.filled[row] = 3900
    caches = [drafter.cache, drafter.working]
    kept = sum(part.nbytes for cache in caches for part in (cache.keys, cache.values))
    kept += sum(weight.nbytes for weight in model.parameters())
    # attention over one request's entries is working memory of the plan
    peak = peak_bytes(lambda: drafter.gather(method._kept(drafter.filled)))
    peak = max(peak, peak_bytes(lambda: drafter.prefill(0, batch, 512)))
    assert kept + peak <= planned
    assert planned < 4 * (kept + peak)


@pytest.mark.parametrize("sinks", [0, 2])
def test_nothing_is_decided_by_the_host(sinks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the reference kernels, which read lengths."""
    model = tiny_model(8)
    for method in (
        magicdec("stream", sinks=sinks, positions="cache-relative"),
        stream_draft(model, sinks=sinks),
    ):
        engine = Engine(model, rows=3, max_len=80)
        engine.use(method, GREEDY)
        for row, ids in enumerate(prompts(8, [40, 21])):
            engine.admit(row, row, ids, 20)
        module = "specbench.engine.reference_compute.paged_attention"
        with monkeypatch.context() as patched, no_host_decisions():
            patched.setattr(module, lambda q, *args: torch.zeros_like(q))
            method.draft(engine.batch)
