"""Reports on ties: tokens whose logits are equal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.ties import first_of_equal_rows
from tests.support.every_method import Factory, engine_for, tokens_of
from tests.support.tiny import (
    autoregressive,
    decode,
    longspec_tree,
    lookup,
    prompts,
    self_tree,
    tiny_model,
    vegas,
)

DISTINCT = 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: vegas(gamma=5, kept_ratio=1.0),
        lambda: lookup(ngram_min=1),
        lambda: self_tree(top_chunks=99, nodes=8),
        longspec_tree,
    ],
    ids=["vegas", "lookup", "specextend, trees", "longspec, trees"],
)
def test_equal_rows_of_the_head_tie_in_any_forward(make: Factory, dtype: torch.dtype) -> None:
    """vllm#7627: outputs parted where two tokens had identical logprobs.

    Each token of the vocabulary stands four times in the head, as the padding of real vocabularies
    does. A product sums a row in an order that depends on its place and on the rows beside it, so
    that a verification took another of the four than a decode step.
    """
    model = tiny_model(1, dtype, vocab_size=4 * DISTINCT + 2)
    copies = torch.arange(len(model.head)) % DISTINCT
    model.head.copy_(model.head[copies])
    model.embed.copy_(model.embed[copies])
    token_ids = prompts(2, [40, 7, 30], len(model.head))
    base, method = autoregressive(), make()
    expected = tokens_of(decode(engine_for(base, model, rows=3), base, token_ids, 25))
    assert tokens_of(decode(engine_for(method, model, rows=3), method, token_ids, 25)) == expected
    assert max(token for ids in expected.values() for token in ids) < DISTINCT


@given(st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_first_of_equal_rows(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float64]))
    # powers of two: rows of one kind differ in nothing, rows of two kinds in a single bit
    rows = torch.tensor([[1.0, -0.0 if i % 2 else 0.0, 2.0**k] for i, k in enumerate(kinds)])
    expected = [kinds.index(kind) for kind in kinds]
    found = first_of_equal_rows(rows.to(dtype))
    assert (list(range(len(kinds))) if found is None else found.tolist()) == expected
    assert (found is None) == (len(set(kinds)) == len(kinds))


def test_a_row_of_nan_equals_none() -> None:
    assert first_of_equal_rows(torch.full((3, 2), torch.nan)) is None


def test_rows_of_one_digest_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.zeros(2, dtype=torch.int64))
    assert first_of_equal_rows(torch.tensor([[1.0, 2.0], [2.0, 1.0]])) is None
    found = first_of_equal_rows(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    assert found is not None
    assert found.tolist() == [0, 1, 0]
