"""Reports on latencies: a stream of known times, several tokens a step, TTFT in its own column."""

from typing import Any

import pytest

from specbench.engine import generate as generation
from specbench.engine.generate import Request, generate
from specbench.results.cells import build_groups
from specbench.results.reading import RunData
from specbench.results.tables import build_rows
from tests.support.every_method import engine_for
from tests.support.records import make_arm, make_request, make_run
from tests.support.tiny import GREEDY, prompts, tiny_model, vegas


def row_of(committed: list[int], **fields: Any) -> dict[str, Any]:
    run = make_run(prompts=1, batch_size=1, arms=("vegas",))
    steps = len(committed)
    request = make_request("vegas", 0, committed, drafted=[4] * steps, running=1, **fields)
    return build_rows(run, build_groups(RunData(run, [request], [make_arm("vegas")], [])))[0]


def test_a_step_of_several_tokens_is_one_latency() -> None:
    """sglang PR#12064: 8.7 ms was reported for a token that takes 3.4 ms; vllm PR#50600.

    Ten steps of 8.7 ms commit 26 tokens: ITL is the step's, TPOT a token's, their ratio is AL.
    """
    row = row_of([3, 2, 3, 2, 3, 3, 2, 3, 2, 3], step_s=0.0087)
    assert row["mean_itl_ms"] == pytest.approx(8.7)
    assert row["mean_tpot_ms"] == pytest.approx(8.7 * 10 / 26)
    assert row["mean_tpot_ms"] == pytest.approx(3.4, abs=0.1)
    assert row["spec_decode_acceptance_length"] == 2.6
    assert row["mean_itl_ms"] / 2.6 == pytest.approx(row["mean_tpot_ms"])


def test_ttft_is_no_step() -> None:
    """vllm#7242, specdec_bench's timing: the list of step times began with TTFT."""
    row = row_of([1, 1, 1], ttft_s=2.0, step_s=0.01)
    assert row["mean_ttft_ms"] == pytest.approx(2000)
    assert (row["mean_itl_ms"], row["p99_itl_ms"]) == pytest.approx((10, 10))
    assert row["mean_tpot_ms"] == pytest.approx(10)
    assert row["mean_e2el_ms"] == pytest.approx(2030)
    # Spec-Bench: prefill inside the clock of decoding
    assert row["output_throughput"] == pytest.approx(100)


def test_the_first_token_is_the_first_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastDeploy PR#8113, sglang PR#36272, club-3090#1096: TTFT at the first *content*.

    A thinking model's first tokens are thoughts, and parsers swallow some. Here the clock ticks one
    second at each reading and no text is looked at: TTFT is the prefill's token, mini-sglang's
    extra tick is not counted, and every token of the output is in some step.
    """
    ticks = iter(range(10_000))
    monkeypatch.setattr(generation, "time", _Clock(ticks))
    method = vegas()
    engine = engine_for(method, tiny_model(7), rows=1)
    engine.use(method, GREEDY)
    (found,) = generate(engine, [Request(0, "thinking", prompts(7, [40])[0], 9)])
    times = found.times
    # read when a request is admitted, when its first token is there, then around every step
    assert (times.prefill_s, times.ttft_s) == (1, 1)
    assert sum(found.committed) + 1 == len(found.output_ids) == 9
    assert times.steps.step_s == [1] * len(found.committed)
    assert times.e2e_s == times.ttft_s + len(found.committed) + 1


class _Clock:
    def __init__(self, ticks: Any) -> None:
        self.ticks = ticks

    def perf_counter(self) -> float:
        return float(next(self.ticks))
