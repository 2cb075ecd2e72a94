"""Task scores: means over prompts with an interval that stays sensible at the ends."""

import numpy as np
import pytest

from specbench.results import stats
from specbench.results.cells import build_groups
from specbench.results.metrics import Row
from specbench.results.reading import RunData
from specbench.results.records import RunRecord, ScoreRecord
from specbench.results.tables import build_rows
from specbench.results.terminal import score_lines
from tests.support.records import AR, make_arm, make_request, make_run


def rows(scores: list[ScoreRecord], **changes: object) -> dict[str, Row]:
    """Three prompts in two repeats of the baseline, scored as given."""
    run: RunRecord = make_run(prompts=3, repeats=2, arms=(AR,), **changes)
    named = run.datasets[0].model_copy(update={"score": "choice"})
    run = run.model_copy(update={"datasets": [named]})
    requests = [make_request(AR, i, [1, 1], repeat=r) for r in range(2) for i in range(3)]
    data = RunData(run, requests, [make_arm(AR, r) for r in range(2)], [], scores)
    return {row["arm"]: row for row in build_rows(run, build_groups(data))}


def score(index: int, value: float, repeat: int = 0) -> ScoreRecord:
    return ScoreRecord(arm=AR, dataset="govreport", repeat=repeat, index=index, score=value)


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    # Wilson's interval as tabulated by Newcombe (1998), and for none of thirty
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_of_right_and_wrong_is_wilsons(
    right: int, count: int, low: float, high: float
) -> None:
    estimate = stats.mean(np.array([1.0] * right + [0.0] * (count - right)))
    assert estimate.value == pytest.approx(right / count)
    assert (estimate.low, estimate.high) == (
        pytest.approx(low, abs=5e-5),
        pytest.approx(high, abs=5e-5),
    )


def test_other_scores_have_a_bootstrap_and_one_prompt_has_none() -> None:
    estimate = stats.mean(np.linspace(0.1, 0.5, 40))
    assert estimate.value == pytest.approx(0.3)
    assert estimate.low is not None
    assert estimate.high is not None
    # two standard errors of the mean: 0.118 / sqrt(40)
    assert estimate.low == pytest.approx(0.263, abs=0.005)
    assert estimate.high == pytest.approx(0.337, abs=0.005)
    assert stats.mean(np.array([0.4])) == stats.Estimate(0.4)
    assert stats.mean(np.array([])) == stats.Estimate()


def test_repeats_of_a_prompt_are_averaged_and_n_counts_prompts() -> None:
    given = [score(0, 1), score(0, 0, 1), score(1, 1), score(1, 1, 1)]
    row = rows(given)[AR]
    assert row["score"] == pytest.approx(0.75)
    assert row["score_name"] == "choice"
    assert row["score_prompts"] == 2
    assert row["score_outputs"] == 4
    assert row["score_cut"] == 1.0
    (line,) = score_lines([row])
    assert line.startswith("score  govreport choice, n 2: autoregressive 0.75 [")


def test_no_score_is_unknown_and_random_weights_have_none() -> None:
    assert rows([])[AR]["score"] is None
    assert score_lines(list(rows([]).values())) == []
    dummy = rows([score(0, 1)], model={"spec": "dummy:tiny", "dummy": True})
    assert dummy[AR]["score"] is None
