"""Thousands of short requests through 64 rows: nothing is lost, grows or drifts."""

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import specbench
from specbench.engine.engine import Engine
from specbench.engine.generate import Request
from specbench.methods.base import EngineMethod
from tests.support.folder import write_model, write_prompts
from tests.support.tiny import GREEDY, longspec, lookup, magicdec, prompts, tiny_model, vegas

SCRIPT = Path(specbench.__file__).parents[1] / "scripts" / "load.py"
ROWS = 64


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def requests(count: int) -> list[Request]:
    """Prompts of 4 to 40 tokens; those of the last third are those of the first."""
    third = count // 3
    lengths = [4 + (7 * i) % 37 for i in range(count - third)]
    made = [Request(i, f"item-{i}", ids, 3 + i % 9) for i, ids in enumerate(prompts(5, lengths))]
    return [*made, *(replace(r, index=r.index + count - third) for r in made[:third])]


def run(script: dict[str, Any], method: EngineMethod, count: int) -> None:
    engine = Engine(tiny_model(1, torch.float64, 64), rows=ROWS, max_len=64)
    completed = list(script["drive"](engine, method, requests(count), GREEDY))
    assert len(completed) == count
    found = script["judge"](completed, engine)
    assert found["complaints"] == []
    by_index = {done.index: done for done in completed}
    for index in range(count // 3):
        again = by_index[index + count - count // 3]
        assert (by_index[index].steps, by_index[index].committed) == (again.steps, again.committed)
    assert engine.batch.block_table.count_nonzero() == 0


def test_two_thousand_requests(script: dict[str, Any]) -> None:
    run(script, vegas(min_tokens=6), 2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [lookup, longspec, *(lambda v=v: magicdec(v) for v in ("stream", "snapkv", "quest"))],
    ids=["lookup", "longspec", "stream", "snapkv", "quest"],
)
def test_two_thousand_requests_of_another_method(script: dict[str, Any], make: Any) -> None:
    run(script, make(), 2000)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda e: e.cache.allocate(1), "in use that neither a row"),
        (lambda e: e.batch.block_table[1].fill_(0), "block table of row 1 is not that"),
        (lambda e: e.batch.block_table[0].copy_(e.batch.block_table[1]), "block table of row 0"),
        (lambda e: e.batch.block_table[2, 0].fill_(1), "block table of row 2"),
    ],
    ids=["leak", "emptied", "another's", "owner gone"],
)
def test_what_the_check_finds(damage: Any, message: str) -> None:
    engine = Engine(tiny_model(1, torch.float64, 64), rows=3, max_len=64)
    engine.use(vegas(min_tokens=6), GREEDY)
    for row, ids in enumerate(prompts(2, [20, 9])):
        engine.admit(row, row, ids, 8)
    engine.check_integrity()
    damage(engine)
    with pytest.raises(RuntimeError, match=message):
        engine.check_integrity()


def completed(script: dict[str, Any], memory: int, committed: int) -> list[Any]:
    """A third of requests, of 10 steps each."""
    return [
        script["Completed"](i, "a", 9, 9, 10, committed + i % 3, 0, memory, 0, 0.0)
        for i in range(40)
    ]


@pytest.mark.parametrize(
    ("last", "complaint"),
    [
        ((100, 20), None),
        ((100 + 2**25, 20), "host_bytes: 33,554,432 more"),
        ((100, 22), "AL 2.098 in the first third, 2.297 in the last"),
    ],
)
def test_what_a_load_is_blamed_for(
    script: dict[str, Any], last: tuple[int, int], complaint: str | None
) -> None:
    engine = Engine(tiny_model(1, torch.float64, 64), rows=1, max_len=64)
    thirds = [completed(script, *third) for third in ((100, 20), (100, 20), last)]
    found = script["judge"]([done for third in thirds for done in third], engine)
    assert (
        [*found["complaints"]] == [] if complaint is None else complaint in found["complaints"][0]
    )


def test_the_script_from_end_to_end(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model", seed=3)
    write_prompts(tmp_path / "prompts.jsonl", [20 + 9 * i for i in range(6)])
    words = [str(tmp_path / name) for name in ("model", "prompts.jsonl", "out")]
    words += ["--requests", "30", "--rows", "4", "--max-new-tokens", "6"]
    assert script["main"](words) == 0
    found = json.loads((tmp_path / "out" / "load.json").read_text())
    assert (found["requests"], found["kv_pages_lost"], found["complaints"]) == (30, 0, [])
    rows = (tmp_path / "out" / "load.csv").read_text().splitlines()
    assert len(rows) == 31
    assert '"complaints": []' in capsys.readouterr().out
