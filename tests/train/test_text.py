"""Documents from folders, JSONL files and the hub, and what is said of bad ones."""

import json
from pathlib import Path

import pytest

from specbench.errors import DataError, UsageError
from specbench.train.text import documents


def read(path: Path, field: str = "text") -> list[str]:
    return list(documents(str(path), field, []))


def test_a_folder_gives_its_text_and_rows_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.py").write_text("code\n")
    (tmp_path / "a.md").write_text("\ufeffprose", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "one\u2028two"}\n\n{"text": "three", "n": 1}\n')
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "secret.txt").write_text("no")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    skipped: list[str] = []
    found = list(documents(str(tmp_path), "text", skipped))
    assert found == ["prose", "code\n", "one\u2028two", "three"]
    assert sorted(skipped) == ["image.png", "latin.txt"]


def test_a_file_and_another_field(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"content": "x"}))
    assert read(file, "content") == ["x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', r"rows\.jsonl line 2 is not valid JSON: .* at column"),
        ('["x"]', r"rows\.jsonl line 2: a row must be an object, not list"),
        ('{"body": "x", "id": 3}', r"'text' is missing; it has body, id: .*--text-field"),
        ('{"text": null}', r"'text' is a NoneType"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "fine"}\n' + line)
    with pytest.raises(DataError, match=message):
        read(file)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--data .*none: there is no such file or folder"):
        read(tmp_path / "none")


def test_without_a_network_the_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*args: object, **options: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"cannot load some/text from the hub.*give a folder"):
        list(documents("hub:some/text", "text", []))


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load(*args: object, **options: object) -> list[dict[str, str]]:
        asked.append((args, options))
        return [{"body": "one"}, {"body": "two"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(documents("hub:some/text:small", "body", [])) == ["one", "two"]
    assert asked == [(("some/text", "small"), {"split": "train"})]
