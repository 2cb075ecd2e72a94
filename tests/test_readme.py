"""The README's tables of the H200 say what the records say."""

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "h200"
Row = dict[str, str]


def tables(*columns: str) -> list[Row]:
    """Rows of the one table with these columns; an empty first cell is that of the row above."""
    lines = (ROOT / "README.md").read_text().splitlines()
    begin = lines.index(f"| {' | '.join(columns)} |")
    rows: list[Row] = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        row = dict(zip(columns, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))
        if not row[columns[0]]:
            row[columns[0]] = rows[-1][columns[0]]
        rows.append(row)
    return rows


def arm(record: str, table: str, name: str) -> "pd.Series[float]":
    """The arm's line of a record's table."""
    rows = pd.read_csv(RESULTS / record / f"{table}.csv").set_index("arm")
    return rows.loc[name]


def with_interval(line: "pd.Series[float]", column: str) -> str:
    """As the README writes a ratio; the arm that is divided by itself has no interval."""
    value, low, high = (line[column + end] for end in ("", "_low", "_high"))
    if pd.isna(value):
        return "–"
    if pd.isna(low):
        return f"{value:.2f}".removesuffix(".00")
    return f"{value:.2f} [{low:.2f}–{high:.2f}]"


def check(row: Row, record: str, name: str, vllm: str) -> None:
    line = arm(record, "throughput", name)
    assert row["decode tok/s"] == f"{line['output_throughput']:,.0f}"
    assert row["over autoregressive"] == with_interval(line, "speedup_over_autoregressive")
    assert row[vllm] == with_interval(line, "speedup_over_vllm")
    length = arm(record, "acceptance", name)["spec_decode_acceptance_length"]
    assert row["AL"] == ("–" if pd.isna(length) else f"{length:.2f}")


VLLM = "over vLLM 0.25.1"
MAIN = ("batch", "arm", "decode tok/s", VLLM, "over autoregressive", "AL", "overhead %", "lossless")
LONGSPEC = ("batch", "context", "trees", "decode tok/s", "over autoregressive", VLLM, "AL")


@pytest.mark.parametrize("row", tables(*MAIN), ids=lambda row: f"{row['batch']}-{row['arm']}")
def test_methods(row: Row) -> None:
    record = {"1": "engine/main-1"}.get(row["batch"], f"engine/main-16+64/b{row['batch']}")
    check(row, record, row["arm"], VLLM)
    line = arm(record, "throughput", row["arm"])
    if row["arm"] != "autoregressive":
        assert row["lossless"] == line["lossless"]
    share = arm(record, "overhead", row["arm"])["selection_percent"]
    # lookup chooses nothing: what is measured of it is the clock's noise around 0
    shown = "–" if row["arm"] in ("autoregressive", "vllm") else f"{max(share, 0):.1f}"
    assert row["overhead %"] == shown


@pytest.mark.parametrize("row", tables(*LONGSPEC), ids=lambda row: "-".join(list(row.values())[:3]))
def test_longspec(row: Row) -> None:
    deep = row["trees"] == "4,16,16,16,16"
    folder = f"{row['batch']}x2048+8192+20000/c{row['context'].replace(',', '')}"
    record = "longspec/1x20000-deep" if deep else f"longspec/{folder}"
    check(row, record, "longspec", VLLM)
    assert str(arm(record, "throughput", "longspec")["lossless"]).startswith("teacher-forced")
