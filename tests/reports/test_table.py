"""The table of reports names tests that exist, and every method that the engine runs is tried."""

import re
from pathlib import Path

import pytest

from specbench.methods import METHODS
from specbench.methods.base import EngineMethod
from tests.support.every_method import EVERY

TESTS = Path(__file__).parents[1]


def named() -> list[tuple[str, str]]:
    """Files and tests of the table; a name that begins with ``::`` is of the file before it."""
    text = (TESTS / "reports" / "README.md").read_text()
    found, file = [], ""
    for path, name in re.findall(r"`([\w/]*(?:\.py)?)::(test_\w+)`", text):
        file = path or file
        found.append((file, name))
    return found


def test_every_named_test_exists() -> None:
    pairs = named()
    assert len(pairs) > 60
    missing = [
        (file, name)
        for file, name in pairs
        if not re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "file", sorted((TESTS / "reports").glob("test_*.py")), ids=lambda f: f.stem
)
def test_every_file_of_the_folder_is_in_the_table(file: Path) -> None:
    if file != Path(__file__):
        assert f"reports/{file.name}" in {path for path, _ in named()}


def test_every_method_is_tried() -> None:
    kinds = {
        kind
        for name in METHODS.names()
        for kind in METHODS.get(name).variants().values()
        if issubclass(kind, EngineMethod)
    }
    tried = {type(make()) for make in EVERY.values()}
    assert all(any(issubclass(one, kind) for one in tried) for kind in kinds)
