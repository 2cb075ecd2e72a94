"""The folder of a run: what is written survives, and nothing on disk is ever lost or doubled."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import DataError, UsageError
from specbench.results.reading import read_folder
from specbench.results.records import RunRecord, Status
from specbench.results.store import RunStore
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def started(folder: Path, run: RunRecord | None = None) -> RunRecord:
    """A folder with two requests of a run, whose process has ended."""
    run = run or make_run()
    with RunStore.create(folder, run) as store:
        store.append_request(make_request(AR, 0, [1, 1]))
        store.append_request(make_request(AR, 1, [1, 1, 1]))
    return run


def test_what_was_written_is_read_back(folder: Path) -> None:
    run = make_run()
    request, ended, verdict = make_request("vegas", 1, [2, 1]), make_arm(AR), make_verdict(AR, 0)
    with RunStore.create(folder, run) as store:
        assert store.segment == 0
        store.append_request(request)
        store.append_arm(ended)
        store.append_lossless(verdict)
        assert store.load_requests() == [request]
    data = read_folder(folder)
    assert (data.run, data.requests) == (run, [request])
    assert (data.passes, data.verdicts) == ([ended], [verdict])


def test_run_json_is_on_disk_before_anything_runs(folder: Path) -> None:
    with RunStore.create(folder, make_run()):
        assert json.loads((folder / "run.json").read_text())["config"]["batch_size"] == 2


def test_each_request_is_on_disk_at_once(folder: Path) -> None:
    with RunStore.create(folder, make_run()) as store:
        store.append_request(make_request(AR, 0, [1]))
        assert len(read_folder(folder).requests) == 1


def test_an_existing_result_is_never_overwritten(folder: Path) -> None:
    started(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"already holds a run.*--resume") as caught:
        RunStore.create(folder, make_run(gamma=7))
    assert str(folder) in str(caught.value)
    assert caught.value.exit_status == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_with_other_files_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="other files"):
        RunStore.create(folder, make_run())
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(UsageError, match="is a file"):
        RunStore.create(folder, make_run())


def test_an_interrupted_start_can_be_repeated(folder: Path) -> None:
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / "run.json.part").write_text('{"schema')
    started(folder)
    assert len(read_folder(folder).requests) == 2


def test_two_writers_in_one_folder(folder: Path) -> None:
    run = make_run()
    with RunStore.create(folder, run):
        with pytest.raises(UsageError, match="in use"):
            RunStore.resume(folder, run)
        with pytest.raises(UsageError, match="already holds a run"):
            RunStore.create(folder, run)
    RunStore.resume(folder, run).close()


def test_a_writer_in_another_process_holds_the_folder_until_it_is_killed(folder: Path) -> None:
    run = make_run()
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from specbench.results.records import RunRecord\n"
        "from specbench.results.store import RunStore\n"
        "run = RunRecord.model_validate_json(sys.stdin.readline())\n"
        "store = RunStore.create(Path(sys.argv[1]), run)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(run.model_dump_json() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(UsageError, match="in use by another process"):
            RunStore.resume(folder, run)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    RunStore.resume(folder, run).close()


def test_resume_goes_on_in_a_new_segment(folder: Path) -> None:
    run = started(folder)
    with RunStore.resume(folder, run) as store:
        assert store.segment == 1
        assert [record.index for record in store.load_requests()] == [0, 1]
        store.append_request(make_request("vegas", 0, [2], segment=store.segment))
    with RunStore.resume(folder, run) as store:
        assert store.segment == 2


def test_resume_needs_a_run(folder: Path) -> None:
    with pytest.raises(UsageError, match="nothing to resume"):
        RunStore.resume(folder, make_run())
    assert not folder.exists()


@pytest.mark.parametrize("cut", [1, 2, 50, 200])
def test_a_line_cut_short_by_a_crash_is_dropped_and_removed(folder: Path, cut: int) -> None:
    run = started(folder)
    path = folder / "requests.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = 2 if cut == 1 else 1
    assert len(read_folder(folder).requests) == kept
    assert path.read_bytes() == whole[:-cut], "reading must not write"
    with RunStore.resume(folder, run) as store:
        assert len(store.load_requests()) == kept
        if kept == 1:
            store.append_request(make_request(AR, 1, [1, 1, 1]))
    assert path.read_bytes() == whole


def test_a_crash_before_the_first_line_ends(folder: Path) -> None:
    run = started(folder)
    (folder / "requests.jsonl").write_bytes(b'{"schema_ver')
    with RunStore.resume(folder, run) as store:
        assert store.load_requests() == []
        assert store.segment == 0
    assert (folder / "requests.jsonl").read_bytes() == b""


@pytest.mark.parametrize("bad", [b'{"schema_version":1,"ar', b"", b"\xff\xfe\x00"])
def test_a_broken_line_elsewhere_is_an_error_with_its_number(folder: Path, bad: bytes) -> None:
    run = started(folder)
    path = folder / "requests.jsonl"
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, bad, second, b""]))
    for read in (lambda: read_folder(folder), lambda: RunStore.resume(folder, run)):
        with pytest.raises(DataError, match=r"requests\.jsonl line 2 is not valid JSON"):
            read()


def test_a_record_of_the_wrong_shape_is_named(folder: Path) -> None:
    started(folder)
    path = folder / "requests.jsonl"
    path.write_text(path.read_text().replace('"item_id":"item-1"', '"item_id":7'))
    with pytest.raises(DataError, match=r"line 2 is no RequestRecord: item_id"):
        read_folder(folder)


def test_the_same_record_twice_is_an_error(folder: Path) -> None:
    run = started(folder)
    path = folder / "requests.jsonl"
    with RunStore.resume(folder, run) as store, pytest.raises(DataError, match="already holds"):
        store.append_request(make_request(AR, 0, [1]))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0], ""]))
    with pytest.raises(DataError, match=r"lines 1 and 3 are the same record"):
        read_folder(folder)


def test_a_failed_pass_may_be_tried_again_but_a_passed_one_not(folder: Path) -> None:
    run = make_run()
    with RunStore.create(folder, run) as store:
        store.append_arm(make_arm("vegas", status=Status.OOM))
        store.append_arm(make_arm("vegas"))
        assert [record.status for record in store.load_arms()] == [Status.PASSED]
        with pytest.raises(DataError, match="already"):
            store.append_arm(make_arm("vegas", status=Status.OOM))
    assert [record.status for record in read_folder(folder).passes] == [Status.PASSED]


@pytest.mark.parametrize("version", [0, 3, None])
@pytest.mark.parametrize("name", ["run.json", "requests.jsonl"])
def test_another_schema_version_is_refused(folder: Path, name: str, version: int | None) -> None:
    started(folder)
    path = folder / name
    text = path.read_text().replace(": 2", ":2")
    new = "null" if version is None else str(version)
    path.write_text(text.replace('"schema_version":2', f'"schema_version":{new}', 1))
    with pytest.raises(DataError, match=rf"schema version {version}.*reads 1 to 2"):
        read_folder(folder)


def test_a_run_of_schema_version_1_is_read(folder: Path) -> None:
    started(folder)
    before = read_folder(folder)
    path = folder / "run.json"
    old = json.loads(path.read_text())
    for key in ("refused", "cells"):
        del old[key]
    del old["datasets"][0]["score"]
    path.write_text(json.dumps(old | {"schema_version": 1}))
    lines = (folder / "requests.jsonl").read_text()
    assert '"schema_version":2' in lines
    (folder / "requests.jsonl").write_text(
        lines.replace('"schema_version":2', '"schema_version":1')
    )
    assert read_folder(folder) == before


def test_a_newer_schema_asks_for_a_newer_specbench(folder: Path) -> None:
    started(folder)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 9'))
    with pytest.raises(DataError, match=r"schema version 9.*update specbench"):
        read_folder(folder)


def changed(run: RunRecord, part: str, **values: object) -> RunRecord:
    return run.model_copy(update={part: {**getattr(run, part), **values}})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda run: changed(run, "config", max_new_tokens=65),
            "config.max_new_tokens: 64 there, 65",
        ),
        (lambda run: changed(run, "config", top_k=5), "config.top_k: null there, 5 now"),
        (lambda run: changed(run, "model", checkpoint_sha256="cd"), "model.checkpoint_sha256"),
        (lambda run: changed(run, "environment", cpu="Other"), "environment.cpu"),
        (
            lambda run: changed(run, "environment", versions={"torch": "9"}),
            'environment.torch: "2.13.0" there, "9" now',
        ),
        (lambda run: make_run(gamma=5), "arms.vegas.parameters.gamma: 4 there, 5 now"),
        (lambda run: make_run(arms=(AR,)), "arms.vegas"),
        (
            lambda run: run.model_copy(
                update={"datasets": [run.datasets[0].model_copy(update={"token_ids_sha256": "ff"})]}
            ),
            'datasets.govreport.token_ids_sha256: "00" there, "ff" now',
        ),
    ],
)
def test_resume_names_what_differs(folder: Path, change, named: str) -> None:
    run = started(folder)
    with pytest.raises(UsageError) as caught:
        RunStore.resume(folder, change(run))
    assert named in str(caught.value)
    RunStore.resume(folder, run).close()


def test_resume_ignores_what_may_differ(folder: Path) -> None:
    run = started(folder)
    other = changed(run, "config", resume=True, output="elsewhere")
    other = changed(other, "environment", argv=["--resume"])
    with RunStore.resume(folder, other.model_copy(update={"created": "later"})) as store:
        assert store.run == run


def test_a_full_disk_leaves_whole_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(folder)
    path = folder / "requests.jsonl"
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with RunStore.resume(folder, run) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(DataError, match="No space left"):
                store.append_request(make_request("vegas", 0, [1]))
        assert path.read_bytes() == before
        store.append_request(make_request("vegas", 0, [1]))
    assert len(read_folder(folder).requests) == 3


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"threads": 64}, {"specbench": "9.9.9"}, {"git": {"commit": "0" * 40, "dirty": False}}],
)
def test_another_code_or_thread_count_cannot_continue(
    tmp_path: Path, change: dict[str, object]
) -> None:
    run = make_run()
    RunStore.create(tmp_path / "run", run).close()
    other = run.model_copy(update={"environment": run.environment | change})
    with pytest.raises(UsageError, match=f"environment.{next(iter(change))}"):
        RunStore.resume(tmp_path / "run", other)
