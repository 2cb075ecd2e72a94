"""SpecExtend with a small model: its settings, what is refused, and what it holds."""

import pytest
import torch
from pydantic import ValidationError

from specbench.bench.arms import build_arms
from specbench.bench.plan import make_plan
from specbench.config import RunConfig
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.errors import ContextTooLongError, UsageError
from specbench.methods.specextend.separate import SeparateDraft
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, decode, prompts, tiny_config, tiny_model, with_draft


def config(**values: object) -> RunConfig:
    given = {"method": "specextend", "model": "dummy:tiny", "draft_model": "dummy:tiny"}
    return build_config(given | {"baseline": False} | values)


def test_a_draft_model_makes_another_drafter() -> None:
    (arm,) = build_arms(config())
    assert isinstance(arm.method, SeparateDraft)
    report = arm.info.parameters
    shown = {name: report[name] for name in ("nodes", "depth", "threshold", "gamma", "interval")}
    assert shown == {"nodes": 50, "depth": 10, "threshold": 0.7, "gamma": 10, "interval": 4}
    assert arm.name == "specextend"
    assert report["drafter"]["spec"] == "dummy:tiny"
    assert len(report["drafter"]["checkpoint_sha256"]) == 64
    with pytest.raises(UsageError, match="--gamma is no setting of specextend"):
        build_arms(config(gamma=3))
    with pytest.raises(UsageError, match="--nodes is no setting of specextend"):
        build_arms(config(draft_model=None, nodes=3))


def test_trees_beyond_the_kernels_are_refused() -> None:
    with pytest.raises(ValidationError, match="more than the 512"):
        with_draft(tiny_model(), nodes=100, depth=8)
    with pytest.raises(ValidationError, match="less than 128"):
        with_draft(tiny_model(), nodes=128)


def test_another_vocabulary_is_refused() -> None:
    (arm,) = build_arms(config())
    assert isinstance(arm.method, SeparateDraft)
    other = tiny_config(vocab_size=77)
    with pytest.raises(UsageError, match=r"vocabulary of [\d,]+ tokens, and tiny 77: drafts"):
        arm.method.check(config(), other, 100)


def test_a_plan_counts_the_drafter_and_its_trees(capsys: object) -> None:
    small = {"dataset": "govreport", "source": "sample", "context_len": 200, "max_new_tokens": 9}
    alone = make_plan(config(**small, draft_model=None, device="cpu"))
    drafted = make_plan(config(**small, device="cpu", nodes=20))
    assert alone.memory is not None
    assert drafted.memory is not None
    assert drafted.memory.kv_cache > alone.memory.kv_cache
    assert drafted.memory.method > alone.memory.method + drafted.memory.weights


def test_a_budget_beyond_the_drafters_context_is_refused() -> None:
    drafter = tiny_model(max_position_embeddings=100)
    engine = Engine(tiny_model(1), rows=1, max_len=200, spare=6)
    with pytest.raises(ContextTooLongError, match=r"holds 100 tokens, .* lower --top-chunks"):
        engine.use(with_draft(drafter, top_chunks=25), GREEDY)
    with pytest.raises(ContextTooLongError, match=r"lower --draft-window or --prefill-chunk"):
        engine.use(with_draft(drafter), GREEDY)
    engine = Engine(tiny_model(1), rows=1, max_len=200, spare=6, prefill_chunk=32)
    method = with_draft(drafter, draft_window=50)
    assert decode(engine, method, prompts(1, [180]), 15)[0].output_ids


def test_weights_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (arm,) = build_arms(config(nodes=4, depth=2))
    method = arm.method
    assert isinstance(method, SeparateDraft)
    shape = method.source.config
    model = tiny_model(1, torch.float32, vocab_size=shape.vocab_size)
    engine = Engine(model, rows=1, max_len=100, spare=4)
    engine.use(method, GREEDY)
    first = method.drafter.model
    engine.use(method, GREEDY)
    assert method.drafter.model is first
    other = Engine(model, rows=1, max_len=100, spare=4)
    other.use(method, GREEDY)
    assert method.drafter.engine is other
    method.unbind()
    assert "drafter" not in vars(method)


def test_the_planned_memory_covers_what_is_held() -> None:
    target, drafter = (
        tiny_model(7, torch.float32, 4096, max_position_embeddings=4096) for _ in range(2)
    )
    engine = Engine(target, rows=3, max_len=4000, spare=6)
    method = with_draft(drafter, chunk=32, top_chunks=20, interval=4)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    batch = engine.batch
    for row in range(3):
        batch.reserve(row, engine.cache.allocate(4006))
        batch.admit(row, row, 3900, 1, 90)
        method.retrieval.admit(row, batch)
        method.drafter.filled[row] = 3900
    drafter_holds = method.drafter
    caches = [drafter_holds.cache, drafter_holds.working]
    kept = sum(part.nbytes for cache in caches for part in (cache.keys, cache.values))
    kept += sum(weight.nbytes for weight in drafter.parameters())
    # attention over one request's entries is working memory of the plan
    attention = 2 * 4000 * 2 * 8 * 4
    prompt = prompts(1, [3990])[0]
    batch.history[0, :3990] = torch.tensor(prompt)
    peak = max(
        peak_bytes(lambda: method.draft(batch)),
        peak_bytes(lambda: drafter_holds.prefill(0, batch, 512)),
    )
    assert kept + peak - attention <= planned
    assert planned < 4 * (kept + peak)
