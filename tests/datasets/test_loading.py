"""Loading from files, folders, the hub and the sample, and what broken input gets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.datasets import get_dataset
from specbench.datasets.aime25 import AIME25
from specbench.datasets.hub import commit_of
from specbench.datasets.loading import load_items
from specbench.errors import DataError, UsageError

AIME = [
    {"question": "What is $1+1$?", "answer": "2"},
    {"question": "What is $2+2$?", "answer": "4"},
]
LONGBENCH = {
    "_id": "66f", "domain": "Single-Document QA", "sub_domain": "Legal", "difficulty": "hard",
    "length": "short", "question": "Who signed?", "choice_A": "Ann", "choice_B": "Bo",
    "choice_C": "Cy", "choice_D": "Di", "answer": "C", "context": "It was signed by Cy.",
}  # fmt: skip


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.jsonl", write_jsonl), ("a.json", write_json), ("a.parquet", write_parquet)],
)
def test_every_format_gives_the_same_items(
    tmp_path: Path, name: str, write: Callable[[Path, list[dict[str, Any]]], Path]
) -> None:
    file = write(tmp_path / name, AIME)
    loaded = load_items(get_dataset("aime25"), str(file))
    assert [item.fields for item in loaded.items] == [
        {"problem": "What is $1+1$?", "answer": "2"},
        {"problem": "What is $2+2$?", "answer": "4"},
    ]
    assert [item.id for item in loaded.items] == ["aime25-0", "aime25-1"]
    assert loaded.source == f"path:{name}"
    assert loaded.revision is None


def test_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", AIME[1:])
    write_parquet(tmp_path / "a.parquet", AIME[:1])
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.jsonl").write_text("broken")
    loaded = load_items(get_dataset("aime25"), str(tmp_path))
    assert [item.fields["answer"] for item in loaded.items] == ["2", "4"]


def test_folder_prefers_files_named_after_the_dataset_then_its_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "train-00000.jsonl", [LONGBENCH])
    write_jsonl(tmp_path / "data" / "test-00000.jsonl", AIME[:1])
    loaded = load_items(get_dataset("aime25"), str(tmp_path))
    assert [item.fields["answer"] for item in loaded.items] == ["2"]
    write_jsonl(tmp_path / "aime25.jsonl", AIME[1:])
    loaded = load_items(get_dataset("aime25"), str(tmp_path))
    assert [item.fields["answer"] for item in loaded.items] == ["4"]
    write_jsonl(tmp_path / "longbench_v2_style.jsonl", [LONGBENCH, LONGBENCH])
    assert len(load_items(get_dataset("longbench-v2"), str(tmp_path)).items) == 2


def test_longbench_schema(tmp_path: Path) -> None:
    file = write_json(tmp_path / "data.json", [LONGBENCH])
    dataset = get_dataset("longbench-v2")
    (item,) = load_items(dataset, str(file)).items
    assert item.id == "66f"
    assert dataset.reference(item) == "C"


def test_line_separators_inside_a_string_end_no_line(tmp_path: Path) -> None:
    row = {"question": "one\u2028two\u0085three", "answer": 3}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row, ensure_ascii=False) + "\r\n\r\n", encoding="utf-8")
    (item,) = load_items(get_dataset("aime25"), str(file)).items
    assert item.fields["problem"] == "one\u2028two\u0085three"


def test_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(AIME[0]) + '\n\n{"question": "cut o')
    with pytest.raises(DataError, match=r"a\.jsonl line 3 is not valid JSON"):
        load_items(get_dataset("aime25"), str(file))


def test_line_that_is_no_object(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(AIME[0]) + "\n[1, 2]\n")
    with pytest.raises(DataError, match=r"a\.jsonl line 2: a row must be an object, not list"):
        load_items(get_dataset("aime25"), str(file))


def test_missing_field_is_named_with_its_line(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [AIME[0], {"problm": "x", "answer": 1}])
    with pytest.raises(
        DataError, match=r"line 2: no field 'question' or 'problem'; .*present are: problm, answer"
    ):
        load_items(get_dataset("aime25"), str(file))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": " ", "answer": 1}, "'question' is empty"),
        ({"question": None, "answer": 1}, "'question' must be text, not NoneType"),
        ({"question": "x", "answer": "two"}, "'answer' is 'two', not an integer"),
    ],
)
def test_field_of_a_wrong_kind(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match=message):
        load_items(get_dataset("aime25"), str(file))


def test_answer_that_is_no_choice(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{**LONGBENCH, "answer": "E"}])
    with pytest.raises(DataError, match="'answer' is 'E', not one of A, B, C, D"):
        load_items(get_dataset("longbench-v2"), str(file))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match="holds no rows"):
        load_items(get_dataset("aime25"), str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"question":\n1,}]', r"a\.json is not valid JSON: .* at line 2, column 3"),
        ("a.json", b'{"rows": []}', "must hold a list of rows, not dict"),
        ("a.jsonl", b'{"question": "\xff"}', "not UTF-8"),
        ("a.parquet", b"PAR1 but no more", "not a valid Parquet file"),
        ("a.csv", b"question,answer", r"must end in one of \.jsonl, \.json, \.parquet"),
    ],
)
def test_broken_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_items(get_dataset("aime25"), str(file))


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.jsonl"):
        load_items(get_dataset("aime25"), str(tmp_path))


def test_missing_path_and_mistyped_source() -> None:
    with pytest.raises(UsageError, match=r"no file or folder 'nowhere/x\.jsonl'"):
        load_items(get_dataset("aime25"), "nowhere/x.jsonl")
    with pytest.raises(UsageError, match="Did you mean 'sample'"):
        load_items(get_dataset("aime25"), "samples")


def test_revision_needs_the_hub() -> None:
    with pytest.raises(UsageError, match="--revision v1 needs --source hub"):
        load_items(get_dataset("aime25"), "sample", "v1")


@pytest.mark.parametrize("revision", [None, "v1.0"])
def test_unreachable_hub_says_how_to_go_on(revision: str | None) -> None:
    with pytest.raises(DataError, match=r"opencompass/AIME2025.*--source PATH.*--source sample"):
        load_items(get_dataset("aime25"), None, revision)


@pytest.mark.parametrize("second", [AIME[1], {"question": "x"}])
def test_hub_loader_reads_every_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any]
) -> None:
    import datasets

    class OnDisk(AIME25):
        hub_id = str(tmp_path / "repository")

    folder = tmp_path / "repository"
    folder.mkdir()
    write_jsonl(folder / "I.jsonl", [AIME[0]])
    write_jsonl(folder / "II.jsonl", [second])
    configs = "".join(
        f"- config_name: AIME2025-{part}\n  data_files:\n  - split: test\n    path: {part}.jsonl\n"
        for part in ("I", "II")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    if "answer" in second:
        loaded = load_items(OnDisk(), "hub")
        assert [item.fields["answer"] for item in loaded.items] == ["2", "4"]
        assert loaded.revision is None
    else:
        with pytest.raises(DataError, match="AIME2025-II test row 0: no field 'answer'"):
            load_items(OnDisk(), "hub")


def test_commit_is_read_from_the_download_addresses(tmp_path: Path) -> None:
    import datasets

    commit = "0123456789abcdef0123456789abcdef01234567"
    table = datasets.Dataset.from_list(AIME)
    table.info.download_checksums = {f"hf://datasets/a/b@{commit}/data/x.parquet": {}}
    assert commit_of([table]) == commit
    file = write_jsonl(tmp_path / "a.jsonl", AIME)
    local = datasets.load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert commit_of([local]) is None


def test_unknown_dataset_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'longbench-v2'"):
        get_dataset("longbench2")
    with pytest.raises(UsageError, match="file:PATH"):
        get_dataset("file:")


class TestPromptFile:
    """``file:PATH`` reads its own path, whatever the source."""

    def test_reads_its_path(self, tmp_path: Path) -> None:
        rows = [
            {"prompt": "hello"},
            {"id": "chat", "messages": [{"role": "user", "content": "hi"}]},
            {"token_ids": [1, 2]},
        ]
        file = write_jsonl(tmp_path / "mine.jsonl", rows)
        loaded = load_items(get_dataset(f"file:{file}"), "sample")
        assert [item.id for item in loaded.items] == ["0", "chat", "2"]
        assert loaded.source == "path:mine.jsonl"

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no file or folder"):
            load_items(get_dataset(f"file:{tmp_path / 'none.jsonl'}"))

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"text": "x"}, r"exactly one of prompt, messages, token_ids; found none"),
            ({"prompt": "x", "token_ids": [1]}, "found prompt and token_ids"),
            ({"prompt": ""}, "'prompt' is empty"),
            ({"prompt": 5}, "'prompt' must be text, not int"),
            ({"messages": []}, "'messages' must be a list"),
            ({"messages": [{"role": "user"}]}, "message 0 must be an object"),
            ({"token_ids": []}, "'token_ids' must be a list"),
            ({"token_ids": [1, -2]}, "'token_ids' holds -2"),
            ({"token_ids": [True]}, "'token_ids' holds True"),
        ],
    )
    def test_broken_rows(self, tmp_path: Path, row: dict[str, Any], message: str) -> None:
        file = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "fine"}, row])
        with pytest.raises(DataError, match=f"line 2: .*{message}"):
            load_items(get_dataset(f"file:{file}"))
