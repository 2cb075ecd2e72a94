"""docs/methods.md names every setting of every method, with its default."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from specbench.methods import METHODS
from specbench.methods.base import Parameters

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
TITLES = {
    "vegas": "Vegas",
    "lookup": "Prompt lookup",
    "magicdec": "MagicDec",
    "specextend": "SpecExtend",
    "longspec": "LongSpec",
}
# a section of its own kind, or none of a method's settings
UNLISTED = {"variant"}


def kinds() -> list[tuple[str, type[Parameters]]]:
    found: dict[tuple[str, type[Parameters]], None] = {}
    for name, title in TITLES.items():
        for kind in METHODS.get(name).variants().values():
            found[title, kind.parameters_type] = None
    return list(found)


def shown(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return "–"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


@pytest.mark.parametrize(("title", "parameters"), kinds(), ids=lambda value: str(value)[-30:])
def test_every_setting_stands_with_its_default(title: str, parameters: type[Parameters]) -> None:
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert section
    for name, field in parameters.model_fields.items():
        if name in UNLISTED:
            continue
        option = f"--{name.replace('_', '-')}"
        rows = [line for line in section.splitlines() if re.search(rf"`{option}[` ]", line)]
        assert rows, f"{option} is not in the section {title}"
        words = re.findall(r"[\w.,+–]+", rows[0])
        assert shown(field.default).strip(",") in [word.strip(",") for word in words], option
