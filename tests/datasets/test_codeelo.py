"""CodeElo: statements in HTML as plain text, and the prompt that they give."""

from pathlib import Path
from typing import Any

import pytest

from specbench.datasets import get_dataset
from specbench.datasets.loading import load_items
from specbench.datasets.plain_text import html_to_text
from specbench.errors import DataError

ROW: dict[str, Any] = {
    "problem_id": "9999A", "url": "https://example.org/9999A", "title": "Two Heaps",
    "rating": 900, "tags": ["math"], "div": "Div. 2", "time_limit_ms": 1500,
    "memory_limit_mb": 256,
    "description": (
        "<div><p>You have $$$n$$$ stones &amp; two heaps.</p><p>Rules:</p><ul><li>take <b>one</b>"
        "</li><li>never more</li></ul></div>"
    ),
    "input": "<p>One integer <i>n</i> (1 &le; <i>n</i> &le; 10<sup>9</sup>).</p>",
    "output": "<p>Print <span class='tex-font-style-tt'>YES</span> or NO.<br>Nothing else.</p>",
    "interaction": None,
    "examples": [["3", "YES"], ["4\n<a><b>", "NO"]],
    "note": "<p>See <img alt='a sketch' src='x.png'>.</p>",
}  # fmt: skip


def load(tmp_path: Path, row: dict[str, Any]) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "codeelo.parquet"
    parquet.write_table(pa.Table.from_pylist([row]), file)
    dataset = get_dataset("codeelo")
    (item,) = load_items(dataset, str(file)).items
    return dataset, item


def test_prompt_holds_the_whole_statement(tmp_path: Path) -> None:
    dataset, item = load(tmp_path, ROW)
    assert item.id == "9999A"
    parts = dataset.parts(item, cot=True)
    assert parts.body == ""
    statement = parts.head.partition("\n\n")[2]
    assert statement == (
        "# Two Heaps\n\nTime limit: 1.5 s\nMemory limit: 256 MB\n\n"
        "You have $n$ stones & two heaps.\n\nRules:\n\n- take one\n- never more\n\n"
        "## Input\n\nOne integer n (1 ≤ n ≤ 10^9).\n\n"
        "## Output\n\nPrint YES or NO.\nNothing else.\n\n"
        "## Example 1\n\nInput:\n```\n3\n```\n\nOutput:\n```\nYES\n```\n\n"
        "## Example 2\n\nInput:\n```\n4\n<a><b>\n```\n\nOutput:\n```\nNO\n```\n\n"
        "## Note\n\nSee a sketch."
    )
    assert dataset.reference(item) is None
    assert dataset.score(item, "YES") is None


def test_interactive_problem_needs_no_input(tmp_path: Path) -> None:
    row = {**ROW, "interaction": "<p>Ask at most 5 times.</p>", "input": "", "examples": []}
    dataset, item = load(tmp_path, row)
    head = dataset.parts(item, cot=True).head
    assert "## Input\n\nSee the interaction below." in head
    assert "## Interaction\n\nAsk at most 5 times." in head


def test_examples_as_objects() -> None:
    row = {**ROW, "examples": [{"input": "1<br>2", "output": "3"}]}
    assert get_dataset("codeelo").normalise(row, 0).fields["examples"] == (("1\n2", "3"),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": ""}, "'input' is empty"),
        ({"time_limit_ms": "soon"}, "'time_limit_ms' is 'soon', not a number"),
        ({"examples": [["1"]]}, "example 0 must be a pair"),
    ],
)
def test_broken_rows(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        get_dataset("codeelo").normalise({**ROW, **change}, 0)


def test_missing_examples() -> None:
    row = {key: value for key, value in ROW.items() if key != "examples"}
    with pytest.raises(DataError, match="no field 'examples'"):
        get_dataset("codeelo").normalise(row, 0)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("plain a<b and c>d", "plain a<b and c>d"),
        ("<p>a\n  b</p>\n\n<p>c</p>", "a b\n\nc"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("<p>x<sub>i</sub>&nbsp;&lt; y</p>", "x_i < y"),
        ("<ol><li>one</li><li>two</li></ol>", "- one\n- two"),
        ("<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "1 2\n3"),
        ("<p>a</p><script>var x = 1;</script><p>b</p>", "a\n\nb"),
        ("<p>unclosed <b>bold", "unclosed bold"),
    ],
)
def test_html_to_text(html: str, text: str) -> None:
    assert html_to_text(html) == text
