"""Rows of datasets and prompt files: items that can be prompted with, or one message."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.datasets import DATASETS
from specbench.datasets.loading import load_items
from specbench.datasets.plain_text import html_to_text
from specbench.datasets.prompt_file import PromptFile
from specbench.datasets.sample import sample_items
from tests.support.hostile import bounded, damaged, examples, mutated, outcome, to_json

ROWS: dict[str, list[dict[str, Any]]] = {
    "file": [
        {"id": "a", "prompt": "Once upon a time"},
        {"messages": [{"role": "user", "content": "hello"}, {"role": "user", "content": "b"}]},
        {"id": 7, "token_ids": [1, 2, 3]},
    ],
    **{
        name: [dict(row) for row in sample_items(name, 2, 0, None, None)]
        for name in ("aime25", "codeelo", "govreport", "longbench-v2")
    },
}


def load(name: str, path: Path) -> Any:
    """Everything that a run does with a file before it has a tokenizer."""
    dataset = PromptFile(path) if name == "file" else DATASETS.get(name)()
    loaded = load_items(dataset, str(path))
    for item in loaded.items:
        assert item.id
        item.id.encode()
        parts = dataset.parts(item, cot=True)
        for message in parts.messages(parts.body):
            message["content"].encode()
        reference = dataset.reference(item)
        if reference is not None:
            reference.encode()
    return loaded


@pytest.mark.parametrize("name", ROWS)
@examples(25)
@given(data=st.data())
def test_a_changed_row(name: str, data: st.DataObject, tmp_path: Path) -> None:
    rows = [data.draw(mutated(row)) for row in ROWS[name]]
    path = tmp_path / "rows.jsonl"
    end = data.draw(st.sampled_from(("\n", "\r\n", "\n\n", "\n\ufeff")))
    path.write_text(end.join(map(to_json, rows)), encoding="utf-8")
    outcome(lambda: load(name, path), "rows.jsonl")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@examples(25)
@given(data=st.data())
def test_a_damaged_file(name: str, suffix: str, data: st.DataObject, tmp_path: Path) -> None:
    rows = ROWS[name]
    text = json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows))
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(data.draw(damaged(text.encode())))
    outcome(lambda: load(name, path), path.name)


PIECES = ("<!--", "<a ", "<p x='", "<br ", "<pre", "<p\n", "<![CDATA[", "</p ", "&#1", "<", "<?")


@pytest.mark.parametrize("piece", PIECES)
def test_markup_that_never_ends_takes_no_longer_than_its_length(piece: str) -> None:
    with bounded(2.0):
        shown = html_to_text("<p>a &lt; b</p>" + piece * 20000)
    assert shown.startswith("a < b")


def test_a_comparison_is_no_tag_and_a_comment_is_gone() -> None:
    assert html_to_text("<p>if a<b<!-- x --> and b<10</p>") == "if a<b and b<10"
