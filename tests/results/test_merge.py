"""Runs in one report: only what can be compared, or marked; every figure as in its own run."""

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.cli import main
from specbench.errors import UsageError
from specbench.results.merge import report_folders
from specbench.results.records import RunRecord
from specbench.results.report import MARK, render_files, summarise
from specbench.results.sources import check_comparable, read_sources
from tests.results.test_report import fill
from tests.support.records import AR, make_arm, make_request, make_run


def changed(run: RunRecord, part: str, **values: Any) -> RunRecord:
    return run.model_copy(update={part: {**getattr(run, part), **values}})


def prompts(run: RunRecord, **values: Any) -> RunRecord:
    entry = run.datasets[0].model_copy(update=values)
    return run.model_copy(update={"datasets": [entry]})


def report(folders: list[Path], output: Path | None = None, force: bool = False) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200)
    status = report_folders(folders, output, force, console)
    assert isinstance(console.file, io.StringIO)
    return status, console.file.getvalue()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (changed(make_run(), "model", checkpoint_sha256="cd"), 'model.checkpoint: "ab" in a, "cd"'),
        (changed(make_run(), "model", rope_scaling="yarn:4"), "model.rope_scaling: null in a"),
        (changed(make_run(), "config", dtype="bfloat16"), 'dtype: "float32" in a, "bfloat16" in b'),
        (changed(make_run(), "environment", cpu="Other"), 'device: "Test CPU, 2 threads" in a'),
        (changed(make_run(), "environment", threads=4), 'device: "Test CPU, 2 threads" in a'),
        (changed(make_run(), "config", temperature=0.6), 'sampling: "greedy" in a, "T 0.6" in b'),
        (changed(make_run(), "config", ignore_eos=True), 'EOS: "ends" in a, "ignored" in b'),
        (prompts(make_run(), token_ids_sha256="11"), "govreport at context 100, batch 2.prompts"),
        (
            prompts(make_run(), max_new_tokens=32),
            "govreport at context 100, batch 2.new tokens: 64 in a",
        ),
    ],
)
def test_what_differs_is_named_and_refused(tmp_path: Path, other: RunRecord, named: str) -> None:
    folders = [fill(tmp_path / "a", make_run()), fill(tmp_path / "b", other)]
    with pytest.raises(UsageError, match="cannot be compared") as refused:
        summarise(folders)
    assert named in str(refused.value)
    assert "--force" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "other",
    [
        make_run(),
        make_run(batch_size=1),
        prompts(make_run(), context_len=200, token_ids_sha256="22"),
        prompts(make_run(), name="codeelo", token_ids_sha256="33"),
        changed(make_run(), "config", seed=7, repeats=1),
        changed(make_run(), "model", spec="the/same"),
    ],
)
def test_batch_context_and_other_data_may_differ(tmp_path: Path, other: RunRecord) -> None:
    folders = [fill(tmp_path / "a", make_run()), tmp_path / "b"]
    fill(folders[1], other, [], [])
    assert check_comparable(read_sources(folders)) == []


def test_force_marks_table_plots_and_terminal(tmp_path: Path) -> None:
    other = changed(make_run(), "config", dtype="bfloat16")
    folders = [fill(tmp_path / "a", make_run()), fill(tmp_path / "b", other)]
    status, printed = report(folders, tmp_path / "out", force=True)
    assert status == 0
    assert printed.startswith(f'{MARK}: dtype: "float32" in a, "bfloat16" in b')
    for name in ("table.md", "table.tex", "speedup.svg", "acceptance.svg"):
        assert MARK in (tmp_path / "out" / name).read_text()


def test_every_figure_is_that_of_its_own_run(tmp_path: Path) -> None:
    slow = [make_request(AR, i, [1] * 6, step_s=0.2, repeat=r) for r in range(3) for i in range(2)]
    run = make_run(repeats=3)
    alone = fill(tmp_path / "alone", run)
    other = fill(
        tmp_path / "other",
        make_run(repeats=3, arms=(AR,)),
        [make_arm(AR, repeat) for repeat in range(3)],
        slow,
    )
    _, printed = report([alone, other], tmp_path / "out")
    merged = pd.read_csv(tmp_path / "out" / "throughput.csv")
    assert merged["run"].tolist() == ["alone", "alone", "other"]
    expected = summarise(alone).frames["throughput"]
    figures = ["output_throughput", "speedup_over_autoregressive", "mean_tpot_ms"]
    assert merged[figures][:2].to_numpy(float) == pytest.approx(
        expected[figures].to_numpy(float), nan_ok=True
    )
    # vegas is 1.5 times as fast as its own baseline, whatever that of the other run was
    assert merged["speedup_over_autoregressive"][1] == pytest.approx(1.5)
    assert "autoregressive (alone)" in printed
    assert "autoregressive (other)" in printed


def test_a_sweep_gives_a_heat_map_and_workload_names(tmp_path: Path) -> None:
    folders = []
    for batch in (1, 2):
        for context in (100, 400):
            run = make_run(batch_size=batch)
            entry = run.datasets[0]
            tokens = [p.model_copy(update={"tokens": context}) for p in entry.prompts]
            run = prompts(run, prompts=tokens, context_len=context, token_ids_sha256=f"{context}")
            requests = [make_request(AR, i, [1] * 6, running=batch) for i in range(2)]
            requests += [
                make_request("vegas", i, [3, 3], drafted=[4, 4], running=batch) for i in range(2)
            ]
            name = tmp_path / f"b{batch}-c{context}"
            folders.append(fill(name, run, [make_arm(AR), make_arm("vegas")], requests))
    files = render_files(summarise(folders))
    assert {"heatmap.png", "heatmap.svg", "context.png"} <= set(files)
    assert "govreport 400 ×2" in files["table.md"].decode()
    assert b"2.00" not in files["heatmap.svg"]
    assert b"3.00" in files["heatmap.svg"]
    alone = render_files(summarise(folders[0]))
    assert not {"heatmap.png", "context.png"} & set(alone)


def test_a_folder_of_runs_stands_for_them_all(tmp_path: Path) -> None:
    for name in ("shard-1-of-2", "shard-2-of-2"):
        fill(tmp_path / "x" / name, make_run())
    status, printed = report([tmp_path / "x"])
    assert status == 0
    assert (tmp_path / "x" / "table.csv").is_file()
    assert "shard-1-of-2" in printed
    assert not (tmp_path / "x" / "shard-1-of-2" / "table.csv").exists()


def test_labels_are_as_long_as_they_must_be(tmp_path: Path) -> None:
    folders = [fill(tmp_path / name / "run", make_run()) for name in ("a", "b")]
    assert [source.label for source in read_sources(folders)] == ["a/run", "b/run"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", make_run())
    with pytest.raises(UsageError, match="given twice"):
        read_sources([folder, tmp_path / "a" / ".." / "a"])


def test_reports_never_replace_those_of_another_run(tmp_path: Path) -> None:
    folders = [fill(tmp_path / name, make_run()) for name in ("a", "b")]
    with pytest.raises(UsageError, match="reports of its own"):
        report(folders, folders[0])


def test_the_folder_of_the_only_run_may_be_named(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", make_run())
    report([folder], tmp_path / "." / "a" / ".." / "a")
    assert (folder / "table.csv").is_file()


def test_a_lossy_part_ends_the_whole_with_1(tmp_path: Path) -> None:
    fine = fill(tmp_path / "fine", make_run())
    lossy = fill(tmp_path / "lossy", make_run(), lossless=False)
    status, printed = report([fine, lossy], tmp_path / "out")
    assert status == 1
    assert "warning: lossy: vegas on govreport: LOSSY" in printed


def test_other_versions_are_a_warning(tmp_path: Path) -> None:
    newer = changed(make_run(), "environment", versions={"torch": "2.14.0"})
    folders = [fill(tmp_path / "a", make_run()), fill(tmp_path / "b", newer)]
    assert any("different versions" in line for line in summarise(folders).warnings)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path / "a", make_run())
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0
    assert "PASSED" in capsys.readouterr().out
    assert (folder / "table.tex").is_file()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "nothing")])
    assert ended.value.code == 2
    assert "holds no run" in capsys.readouterr().err
