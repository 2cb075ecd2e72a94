"""One table in every form: what is unknown is a dash, and what is marked stays marked."""

import io
from typing import Any

import pandas as pd
import pytest

from specbench.results.metrics import Row
from specbench.results.summary_table import to_latex, to_markdown, value_frame
from specbench.results.tables import name_rows
from tests.results.test_metrics import simple

HEADER = ["tiny_model · float32", "batch 2 · 100 % greedy"]


def rows(**changes: Any) -> list[Row]:
    """The rows of two arms; `changes` override those of the second."""
    first, second = simple().values()
    return name_rows([first, second | changes])


def test_markdown_holds_header_table_and_notes() -> None:
    text = to_markdown(rows(), HEADER, ["read this"])
    lines = text.splitlines()
    assert [line.strip() for line in lines[:2]] == HEADER
    cells = [[part.strip() for part in line.strip("|").split("|")] for line in lines[3:7]]
    assert cells[0] == [
        "dataset",
        "arm",
        "status",
        "decode tok/s",
        "speed-up [95 %]",
        "over vLLM",
        "AL",
        "overhead %",
        "lossless",
    ]
    assert cells[2][2:] == ["PASSED", "20.0", "1.00", "–", "–", "–", "reference"]
    assert cells[3][2:] == ["PASSED", "30.0", "1.50", "–", "2.67", "5.0", "–"]
    assert lines[-1] == "- read this"


def test_unknown_is_a_dash_in_text_and_empty_in_the_csv() -> None:
    lost = rows(output_throughput=None, spec_decode_acceptance_length=None, status=None)
    row = to_markdown(lost, HEADER, []).splitlines()[6]
    assert row.count("–") == 4
    assert "unfinished" in row
    assert "0.00" not in row
    read = pd.read_csv(io.StringIO(value_frame(lost).to_csv(index=False)))
    assert read["output_throughput"].isna().tolist() == [False, True]
    assert not (read.select_dtypes("number") == 0).any(axis=None)


def test_a_zero_that_was_measured_is_shown() -> None:
    row = to_markdown(rows(selection_percent=0.0), HEADER, []).splitlines()[6]
    assert "| 0.0" in " ".join(row.split())


def test_intervals_and_the_mark_of_looping_outputs() -> None:
    marked = rows(
        speedup_over_autoregressive_low=1.25,
        speedup_over_autoregressive_high=1.75,
        all_degenerate=True,
    )
    row = to_markdown(marked, HEADER, []).splitlines()[6]
    assert "1.50 [1.25–1.75]" in row
    assert "30.0*" in row
    assert "2.67*" in row


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a_b", r"a\_b"),
        ("50 %", r"50 \%"),
        ("x & $y#", r"x \& \$y\#"),
        ("{z}", r"\{z\}"),
        ("~", r"\textasciitilde"),
        ("\\", r"\textbackslash"),
    ],
)
def test_latex_escapes_cells_and_caption(name: str, written: str) -> None:
    text = to_latex(rows(dataset=name), [name])
    caption, *others = [line for line in text.splitlines() if written in line]
    assert caption.startswith(r"\caption{")
    assert len(others) == 1
    assert others[0].endswith(r" \\")
    assert name == "\\" or name not in text.replace(written, "")


def test_a_sweep_names_batch_and_context_of_each_workload() -> None:
    first = rows()[0]
    sweep = [first, first | {"batch_size": 8}, first | {"max_prompt_tokens": 2048}]
    names = [row["workload"] for row in name_rows([dict(row) for row in sweep])]
    assert names == ["govreport 100 ×2", "govreport 100 ×8", "govreport 2,048 ×2"]


def test_the_same_arm_of_two_runs_is_told_apart() -> None:
    first, second = rows()
    merged = name_rows([first | {"run": "a"}, second | {"run": "a"}, first | {"run": "b"}])
    assert [row["series"] for row in merged] == [
        "autoregressive (a)",
        "vegas",
        "autoregressive (b)",
    ]
