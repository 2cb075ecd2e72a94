"""Each output format alone, on the records that make figures vanish."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from specbench.results.page import render_page
from specbench.results.records import RequestRecord, RunRecord, Status
from specbench.results.report import Summary, summarise
from specbench.results.store import RunStore
from specbench.results.summary_table import to_latex, to_markdown
from specbench.results.tables import to_csv
from tests.support.records import AR, make_arm, make_request, make_run

ARMS = (AR, "vegas")
Case = tuple[RunRecord, list[RequestRecord], list[Any]]


def of_all(steps: list[int], **fields: Any) -> list[RequestRecord]:
    """Two requests of each arm, of as many tokens in each step."""
    return [make_request(arm, i, steps, **fields) for arm in ARMS for i in (0, 1)]


CASES: dict[str, Case] = {
    "nothing ran": (make_run(), [], []),
    "outputs of one token": (make_run(), of_all([]), [make_arm(arm) for arm in ARMS]),
    "gamma 0": (make_run(gamma=0), of_all([1, 1]), [make_arm(arm) for arm in ARMS]),
    "never accepted": (
        make_run(),
        of_all([1, 1])[:2] + [make_request("vegas", i, [1, 1], drafted=[4, 4]) for i in (0, 1)],
        [make_arm(arm) for arm in ARMS],
    ),
    "no time passed": (
        make_run(),
        of_all([1, 1], step_s=0.0, ttft_s=0.0),
        [make_arm(arm) for arm in ARMS],
    ),
    "every arm failed": (
        make_run(),
        [],
        [make_arm(AR, status=Status.OOM, message="full"), make_arm("vegas", status=Status.TIMEOUT)],
    ),
    "the second repeat failed": (
        make_run(repeats=2),
        of_all([1, 1]),
        [make_arm(arm) for arm in ARMS]
        + [make_arm(arm, 1, status=Status.OOM, message="full") for arm in ARMS],
    ),
    "all outputs loop": (
        make_run(),
        of_all([1, 1], degenerate=True),
        [make_arm(arm) for arm in ARMS],
    ),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def summary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    run, requests, passes = request.param
    folder = tmp_path_factory.mktemp("runs") / "run"
    with RunStore.create(folder, run) as store:
        for record in requests:
            store.append_request(record)
        for ended in passes:
            store.append_arm(ended)
    return summarise(folder)


def test_csv(summary: Summary) -> None:
    """Spec-Bench: an arm out of memory repeated the figures of the turn before it.

    Unknown is an empty field: no NaN, no infinity, no None, and of an arm that failed no figure.
    """
    for frame in summary.frames.values():
        rows = list(csv.DictReader(io.StringIO(to_csv(frame).decode())))
        for row in rows:
            for key, value in row.items():
                assert not re.search(r"\b(nan|-?inf|None)\b", value), key
                if key == "output_throughput" and row.get("status") != "PASSED":
                    assert value == ""


def test_markdown(summary: Summary) -> None:
    text = to_markdown(summary.rows, summary.header, summary.warnings)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + len(summary.rows)
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_latex(summary: Summary) -> None:
    text = to_latex(summary.rows, summary.header)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_page(summary: Summary) -> None:
    """Without a single plot, too."""
    text = render_page(summary, {})
    assert text.rstrip().endswith("</html>")
    for row in summary.rows:
        assert str(row["status"] or "unfinished").lower() in text.lower()
    assert not re.search(r">\s*(nan|inf|None)\s*<", text)


@pytest.mark.filterwarnings("error")
def test_no_plot_of_nothing_is_drawn(tmp_path: Path) -> None:
    """A split of no time has no axis; a warning here would stand in every terminal."""
    from specbench.results.plots.split import draw_split

    run, requests, passes = CASES["no time passed"]
    with RunStore.create(tmp_path / "run", run) as store:
        for record in requests:
            store.append_request(record)
        for ended in passes:
            store.append_arm(ended)
    assert draw_split(summarise(tmp_path / "run").rows) is None
