"""Reading a run's folder back, with a word on every line that cannot be read."""

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from specbench.errors import DataError, UsageError
from specbench.parsing import parse_json
from specbench.results.facts import check_facts, first_error
from specbench.results.migration import upgrade
from specbench.results.records import (
    ArmRecord,
    LosslessRecord,
    OverheadRecord,
    Record,
    RequestRecord,
    RunRecord,
    ScoreRecord,
    Status,
)

RUN = "run.json"
REQUESTS = "requests.jsonl"
ARMS = "arms.jsonl"
LOSSLESS = "lossless.jsonl"
SCORES = "scores.jsonl"
OVERHEAD = "overhead.jsonl"

R = TypeVar("R", bound=Record)
J = TypeVar("J", LosslessRecord, ScoreRecord)


@dataclass(frozen=True)
class RunData:
    """All that a run's folder holds.

    Attributes
    ----------
    run : RunRecord
    requests : list of RequestRecord
    passes : list of ArmRecord
        The latest record of each (arm, dataset, repeat).
    verdicts : list of LosslessRecord
    scores : list of ScoreRecord
    overheads : list of OverheadRecord
        The latest of each (arm, dataset).
    """

    run: RunRecord
    requests: list[RequestRecord]
    passes: list[ArmRecord]
    verdicts: list[LosslessRecord]
    scores: list[ScoreRecord] = field(default_factory=list)
    overheads: list[OverheadRecord] = field(default_factory=list)


def read_folder(folder: Path) -> RunData:
    """Everything in `folder`, which may still be written to: an unfinished last line is left out.

    Raises
    ------
    UsageError
        The folder holds no run.
    DataError
        A record that cannot be read; the message names the file and the line.
    """
    return RunData(
        read_run(folder),
        read_requests(folder),
        read_arms(folder),
        read_lossless(folder),
        read_scores(folder),
        read_overheads(folder),
    )


def read_run(folder: Path) -> RunRecord:
    """The `run.json` of `folder`."""
    path = folder / RUN
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{folder} holds no run: cannot read {RUN}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    run = _parse(content, RunRecord, str(path))
    check_facts(run, str(path))
    return run


def read_requests(folder: Path) -> list[RequestRecord]:
    """The requests of `folder`, each key once."""
    lines = _read_lines(folder / REQUESTS, RequestRecord)
    _refuse_duplicates(folder / REQUESTS, [(line, record.key) for line, record in lines])
    return [record for _, record in lines]


def read_arms(folder: Path) -> list[ArmRecord]:
    """The latest record of each pass: one that failed may have been tried again."""
    latest: dict[tuple[str, str, int], ArmRecord] = {}
    for line, record in _read_lines(folder / ARMS, ArmRecord):
        key = (record.arm, record.dataset, record.repeat)
        if key in latest and latest[key].status is Status.PASSED:
            raise DataError(f"{folder / ARMS} line {line}: {key} has passed already")
        latest[key] = record
    return list(latest.values())


def read_lossless(folder: Path) -> list[LosslessRecord]:
    """The verdicts of `folder`, each (arm, dataset, repeat, index) once."""
    return _read_once(folder / LOSSLESS, LosslessRecord)


def read_scores(folder: Path) -> list[ScoreRecord]:
    """The scores of `folder`, each (arm, dataset, repeat, index) once."""
    return _read_once(folder / SCORES, ScoreRecord)


def read_overheads(folder: Path) -> list[OverheadRecord]:
    """The latest time split of each arm and dataset: it may have been measured again."""
    lines = _read_lines(folder / OVERHEAD, OverheadRecord)
    return list({(record.arm, record.dataset): record for _, record in lines}.values())


def mend_tail(path: Path) -> None:
    """Make `path` end with a whole line, so that it can be appended to.

    A last line that is not JSON is cut off: it is what a killed process left. A whole record that
    lacks only its newline is kept.

    Raises
    ------
    DataError
        The disk is full or refuses.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    start = _last_line(content)
    last = content[start:]
    try:
        if not _is_json(last):
            os.truncate(path, start)
        elif not last.endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise DataError(f"cannot write to {path}: {error.strerror}") from error


def _read_once(path: Path, kind: type[J]) -> list[J]:
    lines = _read_lines(path, kind)
    _refuse_duplicates(path, [(line, (r.arm, r.dataset, r.repeat, r.index)) for line, r in lines])
    return [record for _, record in lines]


def _read_lines(path: Path, kind: type[R]) -> list[tuple[int, R]]:
    if not path.exists():
        return []
    content = path.read_bytes()
    start = _last_line(content)
    if not _is_json(content[start:]):
        content = content[:start]
    records = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line and number > content.count(b"\n"):
            break
        where = f"{path} line {number}"
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where} is not valid JSON: {error}; remove or restore it") from error
        records.append((number, _parse(value, kind, where)))
    return records


def _parse(content: Any, kind: type[R], where: str) -> R:
    content = upgrade(content, where)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{where} is no {kind.__name__}: {first_error(error)}") from error


def _last_line(content: bytes) -> int:
    """Where the last line starts, its newline aside."""
    return content[:-1].rfind(b"\n") + 1 if content else 0


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _refuse_duplicates(path: Path, keys: Sequence[tuple[int, Hashable]]) -> None:
    seen: dict[Hashable, int] = {}
    for line, key in keys:
        if key in seen:
            raise DataError(f"{path} lines {seen[key]} and {line} are the same record, {key}")
        seen[key] = line
