"""Reports come from the folder alone: CSV files, plots, terminal table, warnings, exit status."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from rich.console import Console

from specbench.errors import UsageError
from specbench.results.compact import REPEATS, REQUESTS
from specbench.results.contexts import COLUMNS as CONTEXT
from specbench.results.records import ArmRecord, RequestRecord, RunRecord, Status
from specbench.results.report import Summary, summarise, write_reports
from specbench.results.store import RunStore
from specbench.results.tables import columns_of
from specbench.results.terminal import print_summary
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict

CSV = (
    "throughput",
    "acceptance",
    "overhead",
    "context",
    "scores",
    "lossless",
    "repeats",
    "requests",
)
PLOTS = ("throughput", "speedup", "acceptance", "split")
TABLES = ("table.csv", "table.md", "table.tex", "report.html")


def fill(
    folder: Path,
    run: RunRecord,
    passes: list[ArmRecord] | None = None,
    requests: list[RequestRecord] | None = None,
    lossless: bool | None = True,
) -> Path:
    """A run's folder; by default every repeat in which vegas is 1.5 times as fast."""
    with RunStore.create(folder, run) as store:
        for arm in run.arms:
            for repeat in range(run.config["repeats"]):
                for index in range(2 if requests is None else 0):
                    if arm.name == AR:
                        record = make_request(AR, index, [1] * 6, repeat=repeat)
                    else:
                        record = make_request(
                            arm.name,
                            index,
                            [4, 2],
                            drafted=[4, 4],
                            step_s=0.2,
                            split=(0.08, 0.09, 0.01, 0.01),
                            repeat=repeat,
                        )
                    store.append_request(record)
                if passes is None:
                    store.append_arm(make_arm(arm.name, repeat))
        for record in requests or []:
            store.append_request(record)
        for ended in passes or []:
            store.append_arm(ended)
        for index in range(2):
            if "vegas" in {arm.name for arm in run.arms} and requests is None:
                store.append_lossless(make_verdict("vegas", index, lossless))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "run", make_run(repeats=3))


def shown(summary: Summary, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    print_summary(summary, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_is_written_and_listed(folder: Path) -> None:
    summary = write_reports(folder)
    names = {f"{name}.csv" for name in CSV} | set(TABLES)
    names |= {f"{name}.{kind}" for name in PLOTS for kind in ("png", "svg")}
    assert {path.name for path in summary.files} == names
    assert all(path.stat().st_size > 0 for path in summary.files)
    assert not list(folder.glob("*.part"))
    assert summary.exit_status == 0


def test_csv_files_hold_the_figures_in_fixed_columns(folder: Path) -> None:
    write_reports(folder)
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in CSV}
    compact = {"repeats": list(REPEATS), "requests": list(REQUESTS), "context": list(CONTEXT)}
    for name, table in tables.items():
        assert list(table.columns) == (compact.get(name) or columns_of(name))
    vegas = tables["throughput"].set_index("arm").loc["vegas"]
    assert vegas["output_throughput"] == pytest.approx(30)
    assert vegas["speedup_over_autoregressive"] == pytest.approx(1.5)
    assert vegas["lossless"] == "exact 2/2"
    assert vegas["batch_size"] == 2
    acceptance = tables["acceptance"].set_index("arm")
    assert acceptance.loc["vegas", "spec_decode_acceptance_length"] == pytest.approx(3)
    assert json.loads(acceptance.loc["vegas", "acceptance_histogram"]) == [0, 6, 0, 6, 0]
    assert tables["overhead"].set_index("arm").loc["vegas", "selection_percent"] == pytest.approx(5)
    assert list(tables["lossless"]["index"]) == [0, 1]


def test_unknown_is_an_empty_field_and_never_zero(folder: Path) -> None:
    write_reports(folder)
    text = (folder / "acceptance.csv").read_text().splitlines()
    header, baseline = text[0].split(","), text[1].split(",")
    row = dict(zip(header, baseline, strict=True))
    assert row["arm"] == AR
    assert row["spec_decode_acceptance_length"] == ""
    assert row["spec_decode_num_drafts"] == ""


def test_counts_are_whole_numbers_in_the_csv(folder: Path) -> None:
    write_reports(folder)
    header, *rows = (folder / "acceptance.csv").read_text().splitlines()
    column = header.split(",").index("spec_decode_draft_tokens")
    assert [row.split(",")[column] for row in rows] == ["", "48"]


def test_columns_do_not_depend_on_the_run(tmp_path: Path, folder: Path) -> None:
    other = fill(tmp_path / "other", make_run(gamma=6, arms=(AR,)))
    for path in (folder, other):
        write_reports(path)
    for name in CSV:
        first, second = (pd.read_csv(path / f"{name}.csv") for path in (folder, other))
        assert list(first.columns) == list(second.columns)


def test_a_report_needs_nothing_but_the_records(folder: Path, tmp_path: Path) -> None:
    before = write_reports(folder)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("run.json", "requests.jsonl", "arms.jsonl", "lossless.jsonl"):
        shutil.copy(folder / name, moved)
    after = write_reports(moved)
    assert after.rows == before.rows
    for name in CSV:
        assert (moved / f"{name}.csv").read_bytes() == (folder / f"{name}.csv").read_bytes()


def test_a_report_leaves_the_records_alone(folder: Path) -> None:
    records = {path: path.read_bytes() for path in folder.iterdir()}
    write_reports(folder)
    write_reports(folder)
    assert {path: path.read_bytes() for path in records} == records


def test_summarise_writes_nothing(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert summarise(folder).files == []
    assert sorted(folder.iterdir()) == before


def test_no_run_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        write_reports(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_png_with_content(folder: Path, name: str) -> None:
    write_reports(folder)
    image = imread(folder / f"{name}.png")
    assert image.shape[0] >= 350
    assert image.shape[1] >= 600
    drawn = np.unique(image.reshape(-1, image.shape[2]), axis=0)
    # Vegas is the second arm, and its colour fills bars.
    orange = np.all(np.abs(image[..., :3] - np.array([0xE6, 0x9F, 0x00]) / 255) < 0.02, axis=-1)
    assert len(drawn) > 50
    assert orange.mean() > (0.02 if name in ("throughput", "speedup") else 0.002)


def test_one_arm_alone_and_one_that_failed_can_be_plotted(tmp_path: Path) -> None:
    alone = fill(tmp_path / "alone", make_run(arms=(AR,)))
    failed = fill(
        tmp_path / "failed",
        make_run(prompts=1, batch_size=1),
        passes=[make_arm(arm, status=Status.OOM, message="no memory") for arm in (AR, "vegas")],
        requests=[],
    )
    for path in (alone, failed):
        for file in write_reports(path).files:
            if file.suffix == ".png":
                assert imread(file).std() > 0.01


def test_the_terminal_table(folder: Path) -> None:
    text = shown(write_reports(folder))
    lines = [line.split() for line in text.splitlines()]
    assert [AR, "PASSED", "20.0", "1.00", "–", "–", "–", "reference"] in lines
    assert [
        "vegas",
        "PASSED",
        "30.0",
        "1.50",
        "[1.50–1.50]",
        "–",
        "3.00",
        "5.0",
        "exact",
        "2/2",
    ] in lines
    assert "tiny-llama · float32 · Test CPU, 2 threads" in text
    assert "batch 2 · 2 prompts of 100 tokens" in text
    assert "greedy · repeats 3" in text


def test_a_table_of_one_dataset_fits_80_columns(folder: Path) -> None:
    text = shown(write_reports(folder), width=80)
    assert "1.50 [1.50–1.50]" in text
    assert AR in text
    assert "exact 2/2" in text


def test_a_cpu_run_says_where_to_read_speed(folder: Path, tmp_path: Path) -> None:
    assert "results/h200/" in shown(write_reports(folder))
    run = make_run()
    config = run.config | {"device": "cuda"}
    gpu = run.environment | {"gpus": [{"name": "NVIDIA H200"}]}
    run = run.model_copy(update={"config": config, "environment": gpu})
    text = shown(write_reports(fill(tmp_path / "gpu", run)))
    assert "results/h200/" not in text
    assert "NVIDIA H200" in text


def test_a_lossy_run_ends_with_1(tmp_path: Path) -> None:
    summary = write_reports(fill(tmp_path / "run", make_run(), lossless=False))
    assert summary.exit_status == 1
    text = shown(summary)
    assert "LOSSY: 2 of 2 outputs are not the target's" in text
    assert "exact 0/2" in text


def test_a_failed_arm_ends_with_3_and_says_why(tmp_path: Path) -> None:
    passes = [make_arm(AR), make_arm("vegas", status=Status.OOM, message="needs 9 GiB")]
    requests = [make_request(AR, index, [1]) for index in range(2)]
    summary = write_reports(fill(tmp_path / "run", make_run(), passes, requests))
    assert summary.exit_status == 3
    assert "vegas on govreport: OOM: needs 9 GiB" in summary.warnings
    assert ["vegas", "OOM", "–", "–", "–", "–", "–", "–"] in [
        line.split() for line in shown(summary).splitlines()
    ]


def test_a_killed_run_can_be_reported(tmp_path: Path) -> None:
    requests = [make_request(AR, 0, [1])]
    folder = fill(tmp_path / "run", make_run(), [], requests)
    with (folder / "requests.jsonl").open("a") as file:
        file.write('{"schema_version":1,"arm":"autoreg')
    summary = write_reports(folder)
    assert summary.exit_status == 3
    assert any("unfinished, 0 of 1 repeats ended" in line for line in summary.warnings)
    assert "unfinished" in shown(summary)


def test_what_a_reader_must_know_is_said(tmp_path: Path) -> None:
    run = make_run(
        prompts=2,
        model={"spec": "dummy:tiny", "dummy": True},
        warnings=["only 2 of 5 prompts exist"],
    )
    dataset = run.datasets[0]
    cut = dataset.prompts[1].model_copy(update={"truncated": True, "original_tokens": 900})
    dataset = dataset.model_copy(
        update={
            "source": "hub:example",
            "prompts": [dataset.prompts[0], cut],
            "skipped": {"too long": 3, "empty": 0},
        }
    )
    config = run.config | {"ignore_eos": True}
    run = run.model_copy(update={"datasets": [dataset], "config": config})
    requests = [
        make_request(AR, 0, [1], e2e_s=3.0),
        make_request(AR, 1, [1], segment=1),
        make_request("vegas", 0, [1], drafted=[4], running=1, degenerate=True),
        make_request("vegas", 1, [1], drafted=[4], running=1),
    ]
    passes = [make_arm(AR), make_arm("vegas", graph_mode="full")]
    with RunStore.create(tmp_path / "run", run) as store:
        for record in requests:
            store.append_request(record)
        for ended in passes:
            store.append_arm(ended)
        store.append_lossless(make_verdict("vegas", 0, None))
    text = "\n".join(write_reports(tmp_path / "run").warnings)
    for expected in (
        "only 2 of 5 prompts exist",
        "dummy weights",
        "--ignore-eos",
        "resumed: the records come from 2 processes",
        "1 of 2 prompts gave looping output",
        "1 of 2 prompts had their middle cut out",
        "3 items left out: too long",
        "different graph modes: eager, full",
        "vegas on govreport: losslessness of 1 requests unchecked: sampling",
        "vegas on govreport: no step ran with the full batch of 2",
        "autoregressive on govreport: repeat 0:",
    ):
        assert expected in text
    assert "empty" not in text


def test_eager_arms_on_a_gpu_are_a_warning(tmp_path: Path) -> None:
    run = make_run()
    gpu = run.model_copy(update={"config": run.config | {"device": "cuda"}})
    passes = [make_arm(AR, graph_mode="full"), make_arm("vegas", graph_mode="eager")]
    requests = [make_request(arm, i, [1]) for arm in (AR, "vegas") for i in range(2)]
    for name, config, said in (("gpu", gpu, True), ("cpu", run, False)):
        warnings = summarise(fill(tmp_path / name, config, passes, requests)).warnings
        assert any(line.startswith("without CUDA graphs: vegas;") for line in warnings) is said


@pytest.mark.parametrize(
    ("drafted", "said"),
    [(4, "the drafts are hardly ever accepted"), (0, "no step had a draft to verify")],
)
def test_hardly_any_acceptance_is_a_warning(tmp_path: Path, drafted: int, said: str) -> None:
    """sglang#6783."""
    requests = [make_request("vegas", i, [1, 1, 1], drafted=[drafted] * 3) for i in range(2)]
    folder = fill(tmp_path / "run", make_run(arms=("vegas",)), [make_arm("vegas")], requests)
    assert f"vegas on govreport: AL 1.00: {said}" in write_reports(folder).warnings


def test_figures_of_looping_outputs_are_marked(tmp_path: Path) -> None:
    requests = [
        make_request("vegas", index, [5], drafted=[4], degenerate=True) for index in range(2)
    ]
    folder = fill(tmp_path / "run", make_run(arms=("vegas",)), [make_arm("vegas")], requests)
    summary = write_reports(folder)
    assert "5.00*" in shown(summary)
    assert any("all 2 prompts gave looping output" in line for line in summary.warnings)


def test_two_datasets_stand_in_one_table(tmp_path: Path) -> None:
    run = make_run(datasets=("govreport", "codeelo"), arms=(AR,))
    with RunStore.create(tmp_path / "run", run) as store:
        for dataset in ("govreport", "codeelo"):
            for index in range(2):
                store.append_request(make_request(AR, index, [1], dataset=dataset))
            store.append_arm(make_arm(AR, dataset=dataset))
    lines = [line.split() for line in shown(write_reports(tmp_path / "run")).splitlines()]
    for dataset in ("govreport", "codeelo"):
        assert [dataset, AR, "PASSED", "20.0", "1.00", "–", "–", "–", "reference"] in lines
