"""The overlap of sets, against Python's sets."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from specbench.analyze.overlap import (
    ACCEPTED,
    ALL_ROWS,
    RowSets,
    by_distance,
    intersections,
    overlap_rows,
    pair_overlaps,
)
from specbench.config import AttentionBackend
from specbench.engine.engine import Engine
from specbench.kernels.selection.reference import select
from specbench.methods.vegas import VegasParameters
from tests.support.buffers import DEVICE
from tests.support.dense import keys_and_queries
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, decode, prompts, tiny_model, vegas

BACKENDS: tuple[AttentionBackend, ...] = ("sdpa", "triton")
SMALL = {"gamma": 3, "kept_ratio": 0.1, "min_tokens": 2}


def row_sets(**settings: object) -> RowSets:
    return RowSets(VegasParameters(**(SMALL | settings)))


def test_intersections_leave_out_what_stands_for_none() -> None:
    first = torch.tensor([[-1, -1, 2, 5], [0, 1, 2, 9], [4, 5, 6, 7]])
    second = torch.tensor([[-1, 2, 5, 7], [3, 4, 9, 11], [-1, -1, -1, -1]])
    assert intersections(first, second).tolist() == [2, 1, 0]


def test_overlap_of_constructed_scores_is_the_brute_force_one() -> None:
    rows, layers, requests, sets, length = 5, 2, 3, 2, 40
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(rows, layers, requests, sets, length, generator=generator)
    ranked, keep = torch.tensor([40, 23, 9]), torch.tensor([8, 5, 3])
    last = torch.tensor([4, 2, -1])
    chosen = torch.stack([select(one, ranked, keep, 8) for one in scores])
    shared, pairs = by_distance(pair_overlaps(chosen.sort(-1).values, keep), last)

    def best(row: int, layer: int, request: int, head: int) -> set[int]:
        values = scores[row, layer, request, head, : ranked[request]]
        return set(values.topk(int(keep[request])).indices.tolist())

    for distance in range(1, rows):
        counted = [(i, r) for r in range(requests) for i in range(rows) if i + distance <= last[r]]
        assert pairs[distance - 1].sum() == len(counted)
        for layer in range(layers):
            expected = sum(
                len(best(i, layer, r, h) & best(i + distance, layer, r, h)) / int(keep[r]) / sets
                for i, r in counted
                for h in range(sets)
            )
            assert shared[layer, distance - 1].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("score", ["weight", "logit"])
def test_rows_of_a_verification_choose_what_they_attend_to(score: str) -> None:
    engine = Engine(tiny_model(2), rows=2, max_len=120)
    method = row_sets(score=score)
    prompt = prompts(2, [60])[0]
    engine.use(method, GREEDY)
    engine.admit(1, 0, prompt, 30)
    accepted = engine.step().accepted[1]
    tokens = [*prompt, *method.chunk[1].tolist()]
    assert len(tokens) == 64
    for layer, (keys, queries) in enumerate(keys_and_queries(engine, tokens)):
        sets = [_best(keys, queries[60 + row], 61, 60 + row + 1, score) for row in range(4)]
        near = sum(len(a & b) / 7 for one in zip(*sets, strict=True) for a, b in pairwise(one))
        assert method.shared[ALL_ROWS][layer, 0].item() == pytest.approx(near / 2)
        far = sum(len(a & b) / 7 for a, b in zip(sets[0], sets[3], strict=True))
        assert method.shared[ALL_ROWS][layer, 2].item() == pytest.approx(far / 2)
    assert method.pairs[ALL_ROWS].tolist() == [3, 2, 1]
    assert method.pairs[ACCEPTED].tolist() == [max(accepted - d, 0) for d in range(3)]
    assert method.chance[ALL_ROWS].tolist() == pytest.approx([3 * 7 / 61, 2 * 7 / 61, 7 / 61])


def _best(keys: Tensor, query: Tensor, ranked: int, seen: int, score: str) -> list[set[int]]:
    """The seven best of the ranked positions for one query, a set a KV head."""
    scale = keys.shape[-1] ** -0.5
    logits = torch.einsum("hd,khd->hk", query, keys[:seen].repeat_interleave(2, 1)) * scale
    values = logits.softmax(-1) if score == "weight" else logits
    total = values[:, :ranked].unflatten(0, (-1, 2)).sum(1)
    return [set(head.topk(7).indices.tolist()) for head in total]


def test_looking_at_the_rows_alters_nothing() -> None:
    engine = Engine(tiny_model(5), rows=2, max_len=120)
    ids = prompts(5, [50, 33, 71])
    plain = decode(engine, vegas(), ids, [20, 9, 25])
    method = row_sets()
    watched = decode(engine, method, ids, [20, 9, 25])
    for index, generated in plain.items():
        assert watched[index].output_ids == generated.output_ids
        assert watched[index].accepted == generated.accepted
    drafted = [d for g in plain.values() for d in g.drafted or []]
    accepted = [a for g in plain.values() for a in g.accepted]
    expected = [sum(max(n - d, 0) for n in drafted) for d in range(3)]
    assert method.pairs[ALL_ROWS].tolist() == expected
    assert method.pairs[ACCEPTED].tolist() == [
        sum(max(n - d, 0) for n in accepted) for d in range(3)
    ]
    table = overlap_rows(method)
    assert [row["distance"] for row in table] == [1, 2, 3, 1, 2, 3]
    for row in table[:3]:
        assert 0 < row["low"] <= row["overlap"] <= row["high"] <= 1


def test_whole_prefixes_are_the_same_sets_and_no_pairs_are_unknown() -> None:
    engine = Engine(tiny_model(6), rows=1, max_len=60)
    method = row_sets(kept_ratio=1.0)
    decode(engine, method, prompts(6, [20]), 3)
    first, *rest = overlap_rows(method)[:3]
    assert (first["overlap"], first["chance"], first["pairs"]) == (1, 1, 1)
    assert all(row["pairs"] == 0 and row["overlap"] is None for row in rest)


def test_the_planned_memory_covers_what_comparing_takes() -> None:
    engine = Engine(tiny_model(7), rows=3, max_len=4000)
    method = row_sets(kept_ratio=0.3)
    planned = method.memory_bytes(engine.config, 3, 4000, engine.dtype)
    engine.use(method, GREEDY)
    method.ranked.fill_(3999)
    names = "scores", "selected", "row_scores", "row_sets"
    kept = sum(t.numel() * t.element_size() for t in (getattr(method, name) for name in names))
    keep = method._keep(method.ranked)
    peak = peak_bytes(lambda: pair_overlaps(method.row_sets.sort(-1).values, keep))
    assert kept + peak <= planned


def test_the_triton_kernels_choose_the_same() -> None:
    pytest.importorskip("triton")
    model = tiny_model(2, torch.float32, 64).to(DEVICE)
    tables = []
    for backend in BACKENDS:
        engine = Engine(model, rows=1, max_len=48, backend=backend, graphs=False)
        method = row_sets(gamma=2, kept_ratio=0.3)
        decode(engine, method, prompts(2, [30]), 4)
        tables.append(overlap_rows(method))
    for row, other in zip(*tables, strict=True):
        assert row == pytest.approx(other)
