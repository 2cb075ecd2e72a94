"""`specbench analyze vegas` from the command line to its files, on a tiny model."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specbench.analyze import acceptance, kernel_rows, overlap
from specbench.cli import main
from tests.support.folder import write_model, write_prompts

MODEL = ("--model", "model")
PROMPTS = ("--dataset", "file:prompts.jsonl")
QUICK = ("--max-new-tokens", "16", "--num-prompts", "3", "--gamma", "3", "--min-tokens", "4")
KERNELS = ("--query-rows", "2", "--timings", "5")
NAMES = ("kernel_rows", "overlap", "acceptance_by_source")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, prompts and a folder that is taken."""
    root = tmp_path_factory.mktemp("inputs")
    write_model(root / "model", seed=3)
    write_prompts(root / "prompts.jsonl", [40, 90, 60])
    (root / "wrong.yaml").write_text("querys: all\n")
    (root / "busy").mkdir()
    (root / "busy" / "notes.txt").write_text("mine")
    return root


def call(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """The exit status."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(command)
    return ended.value.code


def table(file: Path) -> list[dict[str, str]]:
    with file.open() as opened:
        return list(csv.DictReader(opened))


def test_an_analysis_leaves_three_measurements(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    options = (*MODEL, *PROMPTS, *QUICK)
    analyze = ("analyze", "vegas", *options, *KERNELS, "--output", str(out))
    assert call(analyze, monkeypatch, folder) == 0
    printed = capsys.readouterr().out
    plots = {f"{name}.{suffix}" for name in NAMES for suffix in ("csv", "png", "svg")}
    assert {file.name for file in out.iterdir()} == {"analysis.json", *plots}
    for name in NAMES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
    columns = kernel_rows.COLUMNS, overlap.COLUMNS, acceptance.COLUMNS
    rows = {name: table(out / f"{name}.csv") for name in NAMES}
    for name, expected in zip(NAMES, columns, strict=True):
        assert tuple(rows[name][0]) == expected
    assert [len(rows[name]) for name in NAMES] == [2 * 3, 2 * 3, 3 * 3]
    for text in ("µs: median [lowest–highest]", "lowest layer", "last accepted", "10 files in"):
        assert text in printed
    record = json.loads((out / "analysis.json").read_text())
    assert record["config"]["gamma"] == 3
    assert record["kernels"]["timings"] == 5
    assert record["kernels"]["kernels"] == "reference"
    assert record["environment"]["versions"]["torch"]
    assert [arm["name"] for arm in record["arms"]] == [
        *("overlap", "last accepted", "first+last", "all")
    ]
    assert str(folder) not in json.dumps(record)

    # the same acceptance as that of Vegas's own arms
    for queries in ("first+last", "all"):
        own = tmp_path / queries
        run = ("run", *options, "--queries", queries, "--repeats", "1", "--output", str(own))
        assert call(run, monkeypatch, folder) == 0
        arm = next(row for row in table(own / "acceptance.csv") if row["arm"] == "vegas")
        mine = [row for row in rows["acceptance_by_source"] if row["source"] == queries]
        name = "spec_decode_acceptance_length"
        assert float(mine[0][name]) == pytest.approx(float(arm[name]))
        rates = json.loads(arm["conditional_per_position_acceptance_rates"])
        assert [_number(row["conditional_acceptance"]) for row in mine] == pytest.approx(rates)


def _number(text: str) -> float | None:
    return float(text) if text else None


def test_random_weights_time_the_kernels_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model", "dummy:tiny", "--context-len", "64", "--max-new-tokens", "8", *KERNELS)
    command = ("analyze", "vegas", *options, "--output", "out")
    assert call(command, monkeypatch, tmp_path) == 0
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"analysis.json", "kernel_rows.csv", "kernel_rows.png", "kernel_rows.svg"}
    assert "mean nothing of random weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--model", "smollm", *PROMPTS), 2, "Did you mean 'smollm2-135m-instruct'?"),
        ((*MODEL, "--dataset", "longbench"), 2, "Did you mean 'longbench-v2'?"),
        ((*MODEL, "--dataset", "aime25,codeelo"), 2, "one --dataset at a time, not aime25, code"),
        ((*MODEL, "--dataset", "all"), 2, "one --dataset at a time, not all"),
        ((*MODEL, "--dataset", "file:absent.jsonl"), 2, "no file or folder 'absent.jsonl'"),
        ((*MODEL, *PROMPTS, "--output", "busy"), 2, "busy already holds notes.txt; give another"),
        ((*MODEL, *PROMPTS, "--output", "prompts.jsonl"), 2, "prompts.jsonl is a file"),
        ((*MODEL, *PROMPTS, "--output", "prompts.jsonl/a"), 2, "prompts.jsonl/a: Not a directory"),
        ((*MODEL, *PROMPTS, "--gamma", "0"), 2, "--gamma '0': input should be greater than 0"),
        ((*MODEL, *PROMPTS, "--max-new-tokens", "2"), 2, "--max-new-tokens '2'"),
        ((*MODEL, *PROMPTS, "--kept-ratio", "1.5"), 2, "--kept-ratio '1.5'"),
        ((*MODEL, *PROMPTS, "--score", "random"), 2, "--score 'random': input should be 'logit'"),
        ((*MODEL, *PROMPTS, "--timings", "4"), 2, "--timings '4': input should be greater"),
        ((*MODEL, *PROMPTS, "--query-rows", "65"), 2, "--query-rows '65'"),
        ((*MODEL, *PROMPTS, "--context-len", "600"), 2, "model holds 512 tokens, but 632"),
        ((*MODEL, *PROMPTS, "--config", "wrong.yaml"), 2, "unknown option 'querys'"),
        ((*MODEL, *PROMPTS, "--queries", "all"), 2, "No such option: --queries"),
    ],
)
def test_bad_input(
    folder: Path,
    arguments: tuple[str, ...],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert call(("analyze", "vegas", *arguments), monkeypatch, folder) == status
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("specbench: error: ")
    assert said.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
