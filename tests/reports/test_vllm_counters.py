"""Reports on vLLM's counters and outputs: missing, falling, contradictory, at odds."""

from typing import Any

import pytest

from specbench.config_build import build_config
from specbench.engine.generate import Request
from specbench.errors import UsageError
from specbench.methods.vllm.method import Vllm
from specbench.methods.vllm.process import VllmError
from specbench.methods.vllm.said import to_generated, to_served
from specbench.results.caveats import collect_warnings
from specbench.results.cells import build_groups
from specbench.results.reading import RunData
from specbench.results.records import ArmInfo, ServedRecord, SpecCounters
from specbench.results.tables import build_rows
from tests.support.records import make_arm, make_request, make_run

ABOUT = {"package": "vllm", "version": "0.30.0"}
NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


def counted(drafts: int, tokens: int, accepted: int, places: list[int]) -> dict[str, Any]:
    named = dict(zip(NAMES, (drafts, tokens, accepted), strict=True))
    found: dict[str, Any] = {f"vllm:spec_decode_{name}": n for name, n in named.items()}
    return found | {"vllm:spec_decode_num_accepted_tokens_per_pos": places}


def served(before: dict[str, Any], after: dict[str, Any], speculates: bool = True) -> ServedRecord:
    event = {"before": before, "after": after, "fill_hits": 0, "decode_hits": 32}
    return to_served(ABOUT, [event], 64, speculates)


def test_counters_are_taken_as_differences() -> None:
    """vllm#17382, #7301: counters are global, of all that the process did, warm-up included."""
    found = served(counted(7, 14, 9, [6, 3]), counted(17, 34, 21, [13, 8])).spec_decode
    assert found == SpecCounters(
        num_drafts=10, draft_tokens=20, accepted_tokens=12, accepted_per_position=[7, 5]
    )
    assert served({}, counted(1, 2, 1, [1, 0])).spec_decode is not None


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"vllm:spec_decode_num_drafts": 12},
        counted(12, 24, 8, [7, 5]),  # fewer accepted than before
        counted(12, 24, 12, [5, 7]),  # the second draft accepted more often than the first
        counted(12, 11, 21, [13, 8]),  # more accepted than drafted
        counted(12, 34, 30, [13, 8]),  # places that do not add up
    ],
    ids=["none", "one of four", "falling", "not nested", "beyond the drafts", "sum"],
)
def test_counters_that_say_nothing_sound_are_unknown(after: dict[str, Any]) -> None:
    """vllm#4423, #7586 (no metrics offline), #6642 (a negative increment): unknown, not 0.

    A missing number ended the arm after its pass, and a falling one gave a negative histogram.
    """
    assert served(counted(7, 14, 9, [6, 3]), after).spec_decode is None


def test_without_speculation_there_are_no_counters() -> None:
    """vllm#15958: speculation's figures were shown with speculation off."""
    after = counted(7, 14, 9, [6, 3])
    assert served({}, after, speculates=False).spec_decode is None


def report(
    committed: list[int], counters: SpecCounters | None, gamma: int = 5
) -> tuple[dict[str, Any], list[str]]:
    """The row of a vLLM arm that speculates, and the warnings."""
    arm = ArmInfo(name="vllm-eagle", method="vllm", parameters={"gamma": gamma}, lossless=False)
    run = make_run(prompts=1, batch_size=1, repeats=3, arms=()).model_copy(update={"arms": [arm]})
    record = ServedRecord(
        version="vllm 0.30.0",
        settings={},
        prompt_tokens=100,
        fill_cache_hits=0,
        decode_cache_hits=96,
        preemptions=0,
        spec_decode=counters,
    )
    passes = [make_arm(arm.name, repeat, served=record) for repeat in range(3)]
    requests = [
        make_request(arm.name, 0, committed, running=1, repeat=repeat).model_copy(
            update={"drafted": None}
        )
        for repeat in range(3)
    ]
    data = RunData(run, requests, passes, [])
    groups = build_groups(data)
    return build_rows(run, groups)[0], collect_warnings(data, groups)


def of(drafts: int, tokens: int, accepted: int, places: list[int]) -> SpecCounters:
    return SpecCounters(
        num_drafts=drafts,
        draft_tokens=tokens,
        accepted_tokens=accepted,
        accepted_per_position=places,
    )


def test_al_is_of_the_outputs_where_vllm_counts_beyond_an_eos() -> None:
    """vllm#56101: all five drafts accepted, the third is EOS; vLLM says 6, the output holds 3."""
    row, warnings = report([3], of(1, 5, 5, [1, 1, 1, 1, 1]))
    assert row["spec_decode_acceptance_length"] == 3
    assert row["drafted_acceptance_length"] == 6
    assert not [line for line in warnings if "counters" in line]


@pytest.mark.parametrize("accepted", [3, 24], ids=["fewer", "more"])
def test_counters_at_odds_with_the_outputs_are_a_warning(accepted: int) -> None:
    """vllm#42508: two tools gave two ALs of one run. Both countings are held against each other.

    Four steps hold 8 accepted drafts; what no end of an output explains is said.
    """
    places = [accepted // 3] * 3 + [0, 0]
    row, warnings = report([3, 3, 3, 3], of(accepted // 3, 5 * accepted, accepted, places))
    assert row["spec_decode_acceptance_length"] == 3
    said = [line for line in warnings if "accepted drafts, its outputs hold" in line]
    assert said[0].startswith(
        f"vllm-eagle on govreport: its counters say {3 * accepted} accepted drafts, its outputs "
        "hold 24"
    )
    assert not [
        line for line in report([3, 3], of(2, 10, 4, [2, 2, 0, 0, 0]))[1] if "counters" in line
    ]


def test_missing_counters_are_null_and_said() -> None:
    """Bonsai-demo PR#190 (review), vllm#19993: unknown is not 0, and AL needs no counter."""
    row, warnings = report([3, 2], None)
    assert row["spec_decode_acceptance_length"] == 2.5
    for key in ("drafted_acceptance_length", "spec_decode_acceptance_rate", "acceptance_histogram"):
        assert row[key] is None
    assert any("counters of speculation are missing" in line for line in warnings)


REQUEST = Request(0, "p0", [1, 2, 3], 5)
FILLED = {"seconds": 0.2, "cached": 0}


def said(**changes: Any) -> dict[str, Any]:
    """An event of a request that is done."""
    event: dict[str, Any] = {
        "output_ids": [4, 5, 6, 7, 8],
        "reason": "length",
        "decode_s": 0.4,
        "committed": [1, 1, 1, 1],
        "step_s": [0.1] * 4,
        "running": [1] * 4,
    }
    return event | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_ids": [], "committed": []}, "holds no token"),
        ({"output_ids": [4, 5, 6, 7, 64]}, "holds token 64, outside the vocabulary of 64"),
        ({"output_ids": [4, 5, 6, 7, -1]}, "holds token -1"),
        ({"reason": "abort"}, "ended with 'abort' after 5 tokens"),
        ({"reason": "error", "output_ids": [], "committed": []}, "ended with 'error'"),
        ({"output_ids": [4, 5], "committed": [1]}, "ended after 2 of 5 tokens"),
        ({"committed": [2]}, "began with 3 tokens at once"),
    ],
)
def test_an_output_that_cannot_be_is_the_arms_error(changes: dict[str, Any], message: str) -> None:
    """vllm#53029, PR#45060, PR#21876: token id == vocabulary, empty outputs, crashes steps later.

    They stood in the records as outputs that ended by length, and an empty one ended the whole
    report.
    """
    with pytest.raises(VllmError, match=f"output of request 'p0' {message}"):
        to_generated(REQUEST, said(**changes), FILLED, 0, 64)


def test_a_sound_output_passes() -> None:
    found = to_generated(REQUEST, said(), FILLED, 0, 64)
    assert (found.finish_reason, found.drafted, found.accepted) == ("length", None, [0] * 4)
    assert found.times.ttft_s == 0.2
    assert found.times.e2e_s == pytest.approx(0.6)
    ended = to_generated(
        REQUEST, said(output_ids=[4, 1], reason="stop", committed=[1]), FILLED, 0, 64
    )
    assert ended.finish_reason == "eos"


def test_steps_may_not_be_merged_into_chunks() -> None:
    """specdec_bench infers acceptance from chunk sizes, which merge: here they are always steps.

    With stream_interval 10, vLLM hands over ten tokens at once, and plain vLLM would have shown an
    acceptance length of 10.
    """
    config = build_config({"method": "vllm", "vllm_arg": ["stream-interval=10"]})
    with pytest.raises(UsageError, match="tokens are counted step by step"):
        Vllm.arms(config)
