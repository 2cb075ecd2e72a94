"""Sets of the last accepted token, and that every source decodes what the target would."""

import pytest
import torch

from specbench.analyze.acceptance import acceptance_rows, looping
from specbench.analyze.sources import LastAccepted, sources
from specbench.config_build import build_config
from specbench.engine.engine import Engine
from specbench.errors import DataError
from specbench.methods.vegas import VegasParameters
from tests.support.dense import keys_and_queries, positions_of
from tests.support.tiny import GREEDY, autoregressive, decode, prompts, tiny_model, vegas


def last_accepted(**settings: object) -> LastAccepted:
    values: dict[str, object] = {"gamma": 3, "kept_ratio": 0.1, "min_tokens": 2, "queries": "last"}
    return LastAccepted(VegasParameters(**(values | settings)))


@pytest.mark.parametrize("score", ["weight", "logit"])
def test_the_last_accepted_token_alone_ranks_the_prefix(score: str) -> None:
    engine = Engine(tiny_model(3), rows=2, max_len=140)
    method = last_accepted(score=score, kept_ratio=0.4)
    ids = prompts(3, [50, 61])
    engine.use(method, GREEDY)
    outputs = [[engine.admit(row, row, ids[row], 60)] for row in range(2)]
    seen = set()
    for _ in range(6):
        before = engine.batch.lengths.tolist()
        result = engine.step()
        for row in range(2):
            outputs[row] += result.tokens[row]
            seen.add(result.accepted[row])
            ranked = before[row] + 1
            # what is in the cache ends with the last accepted token
            tokens = (ids[row] + outputs[row])[: before[row] + 1 + result.accepted[row]]
            keep = -(-4 * ranked // 10)
            for layer, (keys, queries) in enumerate(keys_and_queries(engine, tokens)):
                logits = torch.einsum("hd,khd->hk", queries[-1], keys.repeat_interleave(2, 1))
                logits *= engine.scale
                values = logits.softmax(-1) if score == "weight" else logits
                total = values[:, :ranked].unflatten(0, (-1, 2)).sum(1)
                best = [set(head.topk(keep).indices.tolist()) for head in total]
                slots = method.selected[layer, row].tolist()
                assert [positions_of(engine, row, group) for group in slots] == best
    assert len(seen) > 1


def test_every_source_is_lossless_and_named() -> None:
    engine = Engine(tiny_model(4), rows=2, max_len=120)
    ids = prompts(4, [40, 25, 70])
    base = decode(engine, autoregressive(), ids, [30, 12, 20])
    given = {"gamma": 3, "kept_ratio": 0.1, "min_tokens": 2}
    made = sources(build_config(given))
    assert list(made) == ["last accepted", "first+last", "all"]
    for method in made.values():
        outcome = decode(engine, method, ids, [30, 12, 20])
        assert {i: g.output_ids for i, g in outcome.items()} == {
            i: g.output_ids for i, g in base.items()
        }


def test_a_look_at_a_row_writes_no_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(4), rows=2, max_len=120)
    method = last_accepted()
    engine.use(method, GREEDY)
    engine.admit(1, 0, prompts(4, [40])[0], 30)
    engine.step()
    slots: list[int] = []
    monkeypatch.setattr(
        "specbench.engine.forward.write_kv",
        lambda cache, values, given: slots.extend(given.flatten().tolist()),
    )
    method.observe(engine.batch)
    assert slots
    assert set(slots) == {-1}


def test_where_all_drafts_are_accepted_it_is_the_last_row() -> None:
    engine = Engine(tiny_model(5), rows=1, max_len=120)
    ids = prompts(5, [40])
    found = []
    last = vegas(queries="last", kept_ratio=1.0, normaliser="exact")
    for method in (last, last_accepted(kept_ratio=1.0)):
        engine.use(method, GREEDY)
        engine.admit(0, 0, ids[0], 30)
        assert engine.step().accepted == [3]
        found.append(method.scores.clone())
        engine.release_all()
    torch.testing.assert_close(*found)


def test_acceptance_is_what_the_steps_say() -> None:
    engine = Engine(tiny_model(4), rows=2, max_len=120)
    ids = prompts(4, [40, 25])
    passes = {
        name: list(decode(engine, method, ids, 30).values())
        for name, method in (("all", vegas(queries="all")), ("first+last", vegas()))
    }
    table = acceptance_rows(passes, 3, frozenset())
    assert [(row["source"], row["position"]) for row in table[:4]] == [
        *(("all", position) for position in (1, 2, 3)),
        ("first+last", 1),
    ]
    for source, decoded in passes.items():
        steps = [
            (d, min(a, c), c)
            for g in decoded
            for d, a, c in zip(g.drafted or [], g.accepted, g.committed, strict=True)
        ]
        for row in (row for row in table if row["source"] == source):
            place = row["position"]
            offered = [a for d, a, _ in steps if d >= place and a >= place - 1]
            assert row["offered"] == len(offered)
            assert row["accepted"] == sum(a >= place for a in offered)
            assert row["steps"] == len(steps)
            length = sum(c for _, _, c in steps) / len(steps)
            assert row["spec_decode_acceptance_length"] == pytest.approx(length)
            if offered:
                assert row["low"] <= row["conditional_acceptance"] <= row["high"]
    one = acceptance_rows(passes, 3, frozenset({0}))
    other = next(g for g in passes["all"] if g.request.index == 1)
    assert one[0]["steps"] == len(other.committed)


def test_without_a_draft_there_is_no_acceptance() -> None:
    engine = Engine(tiny_model(4), rows=1, max_len=120)
    passes = {"all": list(decode(engine, vegas(), prompts(4, [40]), 2).values())}
    with pytest.raises(DataError, match="sets from all: no verification had drafts"):
        acceptance_rows(passes, 3, frozenset())


def test_a_prompt_that_loops_for_any_source_is_named() -> None:
    engine = Engine(tiny_model(4), rows=1, max_len=120)
    (generated,) = decode(engine, vegas(), prompts(4, [40]), 60).values()
    assert looping({"all": [generated]}) <= {0}
    generated.output_ids = [7] * 60
    assert looping({"first+last": [], "all": [generated]}) == {0}
