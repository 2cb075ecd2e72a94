"""What prompt lookup finds, and how much of it counts as drafted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specbench.config_build import build_config
from specbench.engine.batch import Batch
from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling
from specbench.errors import UsageError
from specbench.methods.lookup import Lookup, latest_occurrence
from tests.support.capture import no_host_decisions
from tests.support.memory import peak_bytes
from tests.support.tiny import GREEDY, autoregressive, decode, lookup, prompts, tiny_model


def by_hand(tokens: list[int], ngram_max: int, ngram_min: int) -> int | None:
    """Where the longest run of last tokens that occurred before ended, by definition."""
    for n in range(ngram_max, ngram_min - 1, -1):
        for end in range(len(tokens) - 2, n - 2, -1):
            if tokens[end - n + 1 : end + 1] == tokens[len(tokens) - n :]:
                return end
    return None


def running(*sequences: list[int], max_len: int = 40) -> Batch:
    """Rows that have committed these tokens; what stands behind them is an old request's."""
    batch = Batch(len(sequences), max_len, [], "cpu")
    batch.history.fill_(1)
    for row, tokens in enumerate(sequences):
        batch.record(row, tokens[:-1])
        batch.admit(row, row, len(tokens) - 1, tokens[-1], 20)
    return batch


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1),
    ngrams=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    gamma=st.integers(1, 16),
)
def test_the_match_equals_a_plain_search(
    sequences: list[list[int]], ngrams: list[int], gamma: int
) -> None:
    low, high = ngrams
    batch = running(*sequences)
    end, found = latest_occurrence(batch.history, batch.lengths, high, low)
    draft = lookup(gamma=gamma, ngram_min=low, ngram_max=high).draft(batch)
    assert draft is not None
    assert draft.counts is not None
    for row, tokens in enumerate(sequences):
        expected = by_hand(tokens, high, low)
        followed = [] if expected is None else tokens[expected + 1 :][:gamma]
        assert (int(end[row]), bool(found[row])) == (expected or 0, expected is not None)
        assert int(draft.counts[row]) == len(followed)
        assert draft.tokens[row, : len(followed)].tolist() == followed


def test_the_longest_match_wins_and_among_equals_the_latest() -> None:
    longest = [1, 2, 3, 7, 2, 3, 8, 1, 2, 3]
    latest = [2, 3, 7, 2, 3, 8, 2, 3]
    shorter = [1, 2, 3, 9, 3, 8, 4, 3]
    batch = running(longest, latest, shorter)
    draft = lookup(gamma=2).draft(batch)
    assert draft is not None
    assert draft.counts is not None
    assert draft.counts.tolist() == [2, 2, 0]
    assert draft.tokens[:2].tolist() == [[7, 2], [8, 2]]
    single = lookup(gamma=2, ngram_min=1).draft(batch)
    assert single is not None
    assert single.tokens[2].tolist() == [8, 4]


def test_the_history_is_the_prompt_and_what_was_committed() -> None:
    engine = Engine(tiny_model(1), rows=2, max_len=60)
    token_ids = prompts(1, [30, 12])
    engine.use(lookup(gamma=5, ngram_min=1), GREEDY)
    whole = [[*ids, engine.admit(row, row, ids, 25)] for row, ids in enumerate(token_ids)]
    for _ in range(5):
        for tokens, new in zip(whole, engine.step().tokens, strict=True):
            tokens += new
        for row, tokens in enumerate(whole):
            assert engine.batch.history[row, : len(tokens)].tolist() == tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.7, seed=1)])
def test_only_what_was_found_counts_as_drafted(sampling: Sampling) -> None:
    model = tiny_model(2, vocab_size=12)
    engine = Engine(model, rows=2, max_len=80)
    method = lookup(gamma=6, ngram_max=3)
    token_ids = prompts(2, [40, 9], 12)
    for index, outcome in decode(engine, method, token_ids, 40, sampling).items():
        tokens = token_ids[index] + outcome.output_ids[:1]
        left = 39
        columns = (outcome.drafted, outcome.accepted, outcome.committed)
        for drafted, accepted, committed in zip(*columns, strict=True):
            found = by_hand(tokens, 3, 2)
            count = 0 if found is None else len(tokens) - 1 - found
            assert drafted == min(6, count, left - 1)
            assert accepted <= drafted
            left -= committed
            tokens += outcome.output_ids[len(tokens) - len(token_ids[index]) :][:committed]
        assert 0 in outcome.drafted
        assert max(outcome.drafted) > 0


def test_nothing_found_is_autoregressive_decoding() -> None:
    model = tiny_model(3)
    prompt = list(range(20))
    engine = Engine(model, rows=1, max_len=40)
    # no run of so many tokens can occur twice among so few
    ours = decode(engine, lookup(ngram_min=16, ngram_max=16), [prompt], 10)[0]
    assert ours.drafted == [0] * 9
    assert ours.committed == [1] * 9
    assert ours.output_ids == decode(engine, autoregressive(), [prompt], 10)[0].output_ids


def test_gamma_0_drafts_nothing() -> None:
    engine = Engine(tiny_model(4), rows=1, max_len=40)
    assert decode(engine, lookup(gamma=0), prompts(4, [20]), 12)[0].drafted == [0] * 11


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="exceeds ngram_max"):
        lookup(ngram_min=5)
    with pytest.raises(UsageError, match=r"lookup: gamma: .*less than or equal to 16"):
        Lookup.from_config(build_config({"method": "lookup", "gamma": 17}))
    chosen = Lookup.from_config(build_config({"method": "lookup", "ngram_max": 6, "ngram_min": 3}))
    assert chosen.report() == {"gamma": 8, "ngram_max": 6, "ngram_min": 3}


def test_the_planned_memory_covers_what_matching_takes() -> None:
    engine = Engine(tiny_model(5), rows=3, max_len=4000)
    engine.use(lookup(), GREEDY)
    planned = lookup().memory_bytes(engine.config, 3, 4000, engine.dtype)
    peak = peak_bytes(lambda: lookup().draft(engine.batch))
    assert peak <= planned
    assert planned < 3 * peak


def test_the_search_reads_no_later_token() -> None:
    batch = running([4, 5, 6, 4, 5])
    before = latest_occurrence(batch.history, batch.lengths, 4, 1)
    batch.history[:, 5:] = torch.tensor([4, 5] * 18)
    after = latest_occurrence(batch.history, batch.lengths, 4, 1)
    assert [t.tolist() for t in before] == [t.tolist() for t in after] == [[1], [True]]


def test_nothing_is_decided_by_the_host() -> None:
    batch = running([4, 5, 6, 4, 5], [1, 2])
    with no_host_decisions():
        draft = lookup().draft(batch)
        assert draft is not None
        batch.commit(draft.tokens, torch.tensor([1, 0]), torch.tensor([2, 2]))
