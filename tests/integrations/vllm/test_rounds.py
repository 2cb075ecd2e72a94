"""The host's bookkeeping: which rows vote, what they rank, and where the next token stands."""

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.integrations.vllm.rounds import FIELDS, Step, plan_round

GAMMA = 3
MAX_LEN = 64


def step(rows: list[int], computed: list[int], prefilling: list[bool] | None = None) -> Step:
    flags = prefilling or [False] * len(rows)
    return Step(
        np.array(rows), np.array(computed), np.array(flags), torch.zeros(len(rows), 4).int()
    )


def planned(texts: list[list[int]], sampled: list[list[int]], of: Step) -> list[dict[str, int]]:
    """Rows of a plan by field; `texts` are tokens with the sampled ones at their end."""
    tokens = np.zeros((len(texts) + 1, MAX_LEN), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = np.array([*map(len, texts), 7], np.int32)
    made = plan_round(sampled, lengths, tokens, of)
    return [dict(zip(FIELDS, row, strict=True)) for row in made.tolist()]


def test_a_verification_ranks_up_to_its_first_row_and_its_ends_vote() -> None:
    # ten tokens were committed, nine computed; two of three drafts were accepted
    text = [*range(10), 41, 42, 43]
    (row,) = planned([text], [[41, 42, 43]], step([4], [9]))
    assert row == {
        "token": 43,
        "ranked": 10,
        "sampled": 3,
        "seen": 13,
        "votes": 2,
        "last_only": 0,
    }


def test_discarded_drafts_count_and_fewer_drafts_are_fewer_rows() -> None:
    text = [*range(10), 41]
    (rejected,) = planned([text], [[41]], step([4], [9]))
    assert (rejected["seen"], rejected["votes"], rejected["sampled"]) == (13, 2, 1)
    (trimmed,) = planned([text], [[41]], step([2], [9]))
    assert (trimmed["seen"], trimmed["votes"]) == (11, 2)
    (alone,) = planned([text], [[41]], step([1], [9]))
    assert (alone["seen"], alone["votes"], alone["last_only"]) == (10, 1, 0)


def test_only_the_last_chunk_of_a_prompt_starts_drafts_by_its_last_row() -> None:
    text = [*range(20), 41]
    (early,) = planned([text[:20]], [[]], step([8], [8], [True]))
    assert set(early.values()) == {0}
    for rows in (12, 3, 2):
        (last,) = planned([text], [[41]], step([rows], [20 - rows], [True]))
        assert last == {
            "token": 41,
            "ranked": 20,
            "sampled": 1,
            "seen": 20,
            "votes": 1,
            "last_only": 1,
        }


def test_a_single_token_padded_to_a_verification_votes_by_its_first_row() -> None:
    text = [5, 41]
    (row,) = planned([text], [[41]], step([GAMMA + 1], [0], [True]))
    assert (row["ranked"], row["seen"], row["votes"], row["last_only"]) == (1, 1, 1, 0)


def test_a_preempted_request_is_a_prompt_again_though_its_prompt_was_done() -> None:
    # computed anew from a cached prefix that reaches past its prompt
    text = [*range(30), 41]
    (row,) = planned([text], [[41]], step([4], [26], [False]))
    assert (row["ranked"], row["seen"], row["votes"], row["last_only"]) == (30, 30, 1, 1)


def test_rows_keep_their_places_and_padding_is_no_row() -> None:
    texts = [[*range(10), 41], list(range(8)), [*range(5), 42, 43]]
    sampled: list[list[int]] = [[41], [], [42, 43]]
    made = planned(texts, sampled, step([4, 4, 4, 0], [9, 4, 4, 0], [False, True, False, False]))
    assert [row["token"] for row in made] == [41, 0, 43]
    assert [row["sampled"] for row in made] == [1, 0, 2]


def test_what_does_not_fit_together_gets_no_drafts() -> None:
    text = [*range(20), 41]
    (row,) = planned([text], [[41]], step([4], [9]))
    assert set(row.values()) == {0}
    (unscheduled,) = planned([text], [[41]], step([0], [19]))
    assert set(unscheduled.values()) == {0}


def test_a_step_is_read_from_vllms_metadata() -> None:
    metadata = SimpleNamespace(
        query_start_loc_cpu=torch.tensor([0, 4, 9, 9], dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor([13, 20, 0], dtype=torch.int32),
        is_prefilling=torch.tensor([False, True, False]),
        block_table_tensor=torch.ones(3, 2, dtype=torch.int32),
    )
    made = Step.of(metadata)
    assert made.rows.tolist() == [4, 5, 0]
    assert made.computed.tolist() == [9, 15, 0]
    assert made.prefilling.tolist() == [False, True, False]
    assert made.longest == 20
    metadata.is_prefilling = None
    assert Step.of(metadata).prefilling.tolist() == [False] * 3


@given(st.integers(1, 40), st.integers(0, GAMMA), st.integers(0, GAMMA))
def test_the_last_token_stands_behind_what_is_ranked_and_accepted(
    committed: int, drafts: int, accepted: int
) -> None:
    accepted = min(accepted, drafts)
    new = list(range(50, 51 + accepted))
    text = list(range(committed)) + new
    (row,) = planned([text], [new], step([drafts + 1], [committed - 1]))
    position = row["ranked"] - 1 + row["sampled"]
    assert text[position] == row["token"]
    assert row["ranked"] <= row["seen"] == committed + drafts
