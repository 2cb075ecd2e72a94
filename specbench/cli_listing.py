"""What `specbench ls` and `specbench doctor` print."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specbench.bench.doctor import State, abilities, diagnose
from specbench.registry import unknown

if TYPE_CHECKING:
    from specbench.methods.base import Parameters

Row = tuple[str, ...]

_COLUMN_GAP = "  "


def listing(kind: str | None = None) -> str:
    """The table of one kind, or of all kinds under headings.

    Raises
    ------
    UsageError
        `kind` is none of methods, datasets, models.
    """
    sections: dict[str, Callable[[], list[Row]]] = {
        "methods": method_rows,
        "datasets": dataset_rows,
        "models": model_rows,
    }
    if kind is None:
        return "\n\n".join(f"{name}\n{columns(rows())}" for name, rows in sections.items())
    if kind not in sections:
        raise unknown("kind", kind, list(sections))
    return columns(sections[kind]())


def method_rows() -> list[Row]:
    """Name, summary, paper, and settings with their defaults of each method and variant."""
    from specbench.methods import METHODS

    return [
        (kind.name, kind.summary, kind.paper or "", settings(kind.parameters_type))
        for method in map(METHODS.get, METHODS)
        for kind in method.variants().values()
    ]


def settings(parameters: "type[Parameters]") -> str:
    """The settings as the command line spells them, with the defaults that they have."""
    words = []
    for name, field in parameters.model_fields.items():
        words.append(f"--{name.replace('_', '-')}")
        if not field.is_required() and field.default not in (None, ()):
            default = field.default
            words.append(
                ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            )
    return " ".join(words)


def dataset_rows() -> list[Row]:
    """Name, summary and hub id of each dataset."""
    from specbench.datasets import DATASETS

    found = ((name, DATASETS.get(name)) for name in DATASETS)
    rows = [(name, dataset.summary, dataset.hub_id or "") for name, dataset in found]
    return [*rows, ("file:PATH", "any JSONL of prompts", "")]


def model_rows() -> list[Row]:
    """Name and remark of each model that is known by name."""
    from specbench.engine.catalog import known_models

    return [*known_models().items(), ("FOLDER, HUB/ID, FILE.gguf", "any Llama, Qwen2 or Qwen3")]


def doctor_report() -> tuple[str, bool]:
    """The doctor's text, and whether every run's needs are met and something can run."""
    checks = diagnose()
    able = abilities(checks)
    blocks: list[tuple[str, list[Row]]] = [
        ("", [(check.state.value, check.name, check.detail) for check in checks]),
        ("can run here", [("", what) for what, needs in able.items() if not needs]),
        (
            "cannot run here",
            [("", what, f"needs {', '.join(needs)}") for what, needs in able.items() if needs],
        ),
        (
            "to mend",
            [
                ("", check.name, check.fix)
                for check in checks
                if check.fix is not None and check.state is not State.OK
            ],
        ),
    ]
    text = "\n\n".join(f"{title}\n{columns(rows)}".lstrip("\n") for title, rows in blocks if rows)
    return text, all(check.state is not State.MISSING for check in checks)


def columns(rows: Sequence[Row]) -> str:
    """`rows` as left-aligned columns; lines are not cut, so that they can be searched."""
    count = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(count)]
    lines = (
        _COLUMN_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
