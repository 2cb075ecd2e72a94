"""The teacher-forced verdict: what rounding may do, and what it may not excuse."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.bench import lossless
from specbench.bench.run import run_benchmark
from specbench.config_build import build_config
from specbench.errors import SpecbenchError
from specbench.results.records import RequestRecord
from specbench.results.store import RunStore
from tests.support.folder import write_model, write_prompts

QUICK = {"max_new_tokens": 12, "num_prompts": 2, "min_tokens": 4, "gamma": 3, "repeats": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [40, 27])
    return root


def run(folder: Path, output: Path, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and verdicts."""
    values = {
        "model": str(folder / "model"),
        "dataset": f"file:{folder / 'prompts.jsonl'}",
        "output": output,
        "dtype": "bfloat16",
        **QUICK,
    }
    console = Console(file=io.StringIO(), width=160)
    status = run_benchmark(build_config(values | options), console=console, argv=["specbench"])
    return status, [json.loads(x) for x in (output / "lossless.jsonl").read_text().splitlines()]


def tamper(monkeypatch: pytest.MonkeyPatch, change: Any, repeat: int = 1) -> None:
    """Record another output for Vegas's prompt 0 in one repeat."""
    append = RunStore.append_request

    def changed(self: RunStore, record: RequestRecord) -> None:
        if (record.arm, record.index, record.repeat) == ("vegas", 0, repeat):
            record = record.model_copy(update=change(record))
        append(self, record)

    monkeypatch.setattr(RunStore, "append_request", changed)


def replaced(record: RequestRecord) -> dict[str, Any]:
    """A token that the target would never choose, somewhere in the middle."""
    ids = list(record.output_ids)
    ids[5] = (ids[5] + 17) % 60 + 2
    return {"output_ids": ids}


def shortened(record: RequestRecord) -> dict[str, Any]:
    """The same tokens, but for the last step's."""
    last = record.committed[-1]
    steps = record.times.steps
    cut = {name: getattr(steps, name)[:-1] for name in type(steps).model_fields}
    times = record.times.model_copy(update={"steps": steps.model_copy(update=cut)})
    return {
        "output_ids": record.output_ids[:-last],
        **{name: getattr(record, name)[:-1] for name in ("drafted", "accepted", "committed")},
        "times": times,
    }


def test_every_repeat_of_an_honest_run_is_lossless(folder: Path, tmp_path: Path) -> None:
    status, verdicts = run(folder, tmp_path / "out")
    assert status == 0
    assert [(v["repeat"], v["index"]) for v in verdicts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(v["tier"] == "teacher-forced" and v["lossless"] for v in verdicts)
    assert all(v["threshold"] > 0 for v in verdicts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("change", [replaced, shortened])
def test_a_wrong_output_is_lossy_in_any_repeat(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, dtype: str
) -> None:
    tamper(monkeypatch, change)
    status, verdicts = run(folder, tmp_path / "out", dtype=dtype)
    assert status == 1
    wrong = [(v["repeat"], v["index"]) for v in verdicts if not v["lossless"]]
    assert wrong == [(1, 0)]


def test_a_near_tie_is_no_loss_even_where_the_control_shows_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, replaced, repeat=0)
    force = lossless.teacher_force

    def near(*arguments: Any) -> lossless.Margins:
        margins = force(*arguments)
        rounding = margins.largest * 2**-8
        return lossless.Margins(
            [min(b, rounding) for b in margins.below], margins.top2, margins.largest
        )

    monkeypatch.setattr(lossless, "teacher_force", near)
    status, verdicts = run(folder, tmp_path / "out", repeats=1)
    assert status == 0
    assert verdicts[0]["identical"] is False
    assert verdicts[0]["lossless"] is True


def test_a_check_that_fails_does_not_lose_the_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise RuntimeError("can't allocate memory: 9 bytes")

    with monkeypatch.context() as patch:
        patch.setattr(lossless, "teacher_force", full)
        with pytest.raises(SpecbenchError, match=r"losslessness could not be checked.*--resume"):
            run(folder, tmp_path / "out")
    assert (tmp_path / "out" / "throughput.csv").is_file()
    status, verdicts = run(folder, tmp_path / "out", resume=True)
    assert status == 0
    assert len(verdicts) == 4
