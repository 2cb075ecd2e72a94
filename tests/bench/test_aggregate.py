"""Many arms over many datasets: one plan, a status a cell, parts that can be put together again."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.bench.run import run_benchmark
from specbench.bench.shards import parse_shard
from specbench.config_build import build_config
from specbench.errors import ContextTooLongError, UsageError
from specbench.methods.magicdec.stream import Stream
from specbench.methods.vegas import Vegas
from specbench.results.merge import report_folders
from specbench.results.report import summarise
from tests.support.folder import write_model, write_prompts

QUICK = {
    "max_new_tokens": 6,
    "batch_size": 2,
    "num_prompts": 2,
    "gamma": 2,
    "min_tokens": 4,
    "repeats": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", seed=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two prompt files."""
    folder = tmp_path_factory.mktemp("data")
    lengths = {"one": [30, 40], "two": [50, 20]}
    return {n: f"file:{write_prompts(folder / f'{n}.jsonl', of)}" for n, of in lengths.items()}


def run(
    output: Path | None, model: Path, dataset: tuple[str, ...], shard: str = "", **options: Any
) -> tuple[int, str]:
    text = io.StringIO()
    dry = options.pop("dry_run", False)
    values = {"model": str(model), "dataset": dataset, "output": output, **QUICK} | options
    status = run_benchmark(
        build_config(values),
        console=Console(file=text, width=160),
        argv=["specbench", "run"],
        shard=parse_shard(shard) if shard else None,
        dry_run=dry,
    )
    return status, text.getvalue()


def table_rows(printed: str) -> list[list[str]]:
    """The words of the plan's rows."""
    words = (line.split() for line in printed.splitlines() if line.startswith("file:"))
    return [row for row in words if not row[0].endswith(":")]


def statuses(folder: Path) -> dict[tuple[str, str], str]:
    return {(row["dataset"], row["arm"]): row["status"] for row in summarise(folder).rows}


def test_all_methods_load_the_model_once(
    tmp_path: Path, model: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.engine import loader

    loads: list[str] = []
    load = loader.load_model

    def counted(spec: str, **rest: Any) -> Any:
        loads.append(spec)
        return load(spec, **rest)

    monkeypatch.setattr(loader, "load_model", counted)
    names = (files["one"], files["two"])
    status, _ = run(tmp_path / "out", model, names, method=("all",), budget=40)
    assert status == 0
    assert loads == [str(model)]
    found = statuses(tmp_path / "out")
    assert {arm for _, arm in found} >= {"autoregressive", "lookup", "magicdec-stream", "vegas"}
    assert set(found.values()) == {"PASSED"}
    assert len({dataset for dataset, _ in found}) == 2


def test_a_failed_cell_ends_neither_its_arm_elsewhere_nor_other_arms(
    tmp_path: Path, model: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Vegas.draft

    def fails_on_long_rows(self: Vegas, batch: Any) -> Any:
        if int(batch.lengths.max()) > 50:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        return draft(self, batch)

    monkeypatch.setattr(Vegas, "draft", fails_on_long_rows)
    names = (files["two"], files["one"])
    status, printed = run(tmp_path / "out", model, names, method=("vegas", "lookup"))
    assert status == 3
    found = statuses(tmp_path / "out")
    assert found.pop(("file:two.jsonl", "vegas")) == "OOM"
    assert set(found.values()) == {"PASSED"}
    assert len(found) == 5
    assert "file:two.jsonl on vegas" not in printed
    assert "vegas on file:two.jsonl: OOM" in printed


def test_a_dataset_that_cannot_run_is_a_failed_cell_of_every_arm(
    tmp_path: Path, model: Path, files: dict[str, str]
) -> None:
    missing = ("file:missing.jsonl", files["one"])
    status, printed = run(tmp_path / "gone", model, missing)
    assert status == 3
    found = statuses(tmp_path / "gone")
    assert found == {
        ("file:missing.jsonl", "autoregressive"): "RUNTIME_ERROR",
        ("file:missing.jsonl", "vegas"): "RUNTIME_ERROR",
        ("file:one.jsonl", "autoregressive"): "PASSED",
        ("file:one.jsonl", "vegas"): "PASSED",
    }
    assert "missing.jsonl: RUNTIME_ERROR" in printed
    with pytest.raises(UsageError):
        run(tmp_path / "none", model, ("file:missing.jsonl",))


def test_a_context_beyond_the_model_is_one_too(
    tmp_path: Path, model: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.bench import workload

    limits = workload._limits

    def refuse_two(config: Any, shape: Any, dataset: Any) -> Any:
        if dataset.name == "file:two.jsonl":
            raise ContextTooLongError("900 tokens exceed the model's 512")
        return limits(config, shape, dataset)

    monkeypatch.setattr(workload, "_limits", refuse_two)
    status, _ = run(tmp_path / "out", model, (files["one"], files["two"]))
    assert status == 3
    assert statuses(tmp_path / "out")["file:two.jsonl", "vegas"] == "CONTEXT_TOO_LONG"


def test_all_leaves_out_what_cannot_do_what_is_asked_and_says_so(
    tmp_path: Path, model: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Stream.capabilities
    monkeypatch.setattr(Stream, "capabilities", type(able)(batch=False))
    status, printed = run(
        tmp_path / "out", model, (files["one"],), method=("all",), gamma=20, dry_run=True
    )
    assert status == 0
    assert "lookup: left out of 'all': lookup: gamma" in printed
    assert "magicdec-stream: left out of 'all': magicdec-stream decodes one request" in printed
    assert "vllm: left out of 'all': not installed here" in printed
    with pytest.raises(UsageError, match="one request at a time"):
        run(tmp_path / "out", model, (files["one"],), method=("magicdec",), budget=40)


def test_a_dry_run_prints_the_plan_and_leaves_nothing(
    tmp_path: Path, model: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = (files["one"], files["two"])
    status, printed = run(Path("runs/a"), model, names, dry_run=True)
    assert status == 0
    assert not (tmp_path / "runs").exists()
    assert "memory" in printed
    rows = table_rows(printed)
    assert [row[:3] for row in rows] == [
        ["file:one.jsonl", "autoregressive", "1"],
        ["file:one.jsonl", "vegas", "1"],
        ["file:two.jsonl", "autoregressive", "1"],
        ["file:two.jsonl", "vegas", "1"],
    ]
    assert all(row[-1] == "–" for row in rows)
    assert run(Path("runs/a"), model, (files["one"],))[0] == 0
    _, printed = run(Path("runs/b"), model, names, dry_run=True)
    rows = table_rows(printed)
    assert [row[-1] for row in rows] == ["s", "s", "–", "–"]
    assert "≥ " in printed
    _, printed = run(Path("runs/b"), model, names, dry_run=True, gamma=3)
    rows = table_rows(printed)
    assert [row[-1] for row in rows] == ["s", "–", "–", "–"]


def test_parts_on_several_machines_make_one_report(
    tmp_path: Path, model: Path, files: dict[str, str]
) -> None:
    names = (files["one"], files["two"])
    options: dict[str, Any] = {"method": ("vegas", "lookup")}
    whole, _ = run(tmp_path / "whole", model, names, **options)
    assert whole == 0
    for part in ("1/3", "2/3", "3/3"):
        status, _ = run(tmp_path / "parts", model, names, shard=part, **options)
        assert status == 0
    folders = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert folders == ["shard-1-of-3", "shard-2-of-3", "shard-3-of-3"]
    second = json.loads((tmp_path / "parts" / "shard-2-of-3" / "run.json").read_text())
    assert second["cells"] == [
        ["file:one.jsonl", "autoregressive"],
        ["file:one.jsonl", "lookup"],
    ]
    text = io.StringIO()
    status = report_folders([tmp_path / "parts"], None, False, Console(file=text, width=160))
    assert status == 0
    merged = summarise([tmp_path / "parts"])
    ours = {(r["dataset"], r["arm"]): r["spec_decode_acceptance_length"] for r in merged.rows}
    alone = {
        (r["dataset"], r["arm"]): r["spec_decode_acceptance_length"]
        for r in summarise(tmp_path / "whole").rows
    }
    assert ours == alone
    assert all(
        row["speedup_over_autoregressive"] is not None
        for row in merged.rows
        if row["arm"] != "autoregressive"
    )
    assert (tmp_path / "parts" / "table.md").is_file()
    assert "autoregressive (shard-1-of-3)" in text.getvalue()


def test_a_part_can_be_resumed_and_only_as_that_part(
    tmp_path: Path, model: Path, files: dict[str, str]
) -> None:
    names = (files["one"], files["two"])
    assert run(tmp_path / "x", model, names, shard="1/2")[0] == 0
    assert run(tmp_path / "x", model, names, shard="1/2", resume=True)[0] == 0
    whole = tmp_path / "x" / "shard-1-of-2"
    with pytest.raises(UsageError, match="cannot resume"):
        run(whole, model, names, resume=True)
    with pytest.raises(UsageError, match="already holds a run"):
        run(tmp_path / "x", model, names, shard="1/2")
