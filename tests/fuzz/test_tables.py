"""Parquet files, the journal of a tuning, and the figures that a document quotes."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from specbench.datasets.loading import load_items
from specbench.datasets.prompt_file import PromptFile
from specbench.errors import DataError
from specbench.results.figures import summarise_figures
from specbench.tune.storage import check_studies, open_storage, open_study, storage_errors
from tests.support.hostile import damaged, examples, mutated, outcome


def table(rows: list[dict[str, Any]], **options: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), buffer, **options)
    return buffer.getvalue()


ROWS = [{"prompt": "once upon a time", "id": n, "more": [1.5, None]} for n in range(3)]


@examples(30)
@given(data=st.data())
def test_a_damaged_parquet_file(data: st.DataObject, tmp_path: Path) -> None:
    packed = data.draw(st.sampled_from((None, "zstd")))
    path = tmp_path / "rows.parquet"
    path.write_bytes(data.draw(damaged(table(ROWS, compression=packed))))

    def read() -> None:
        for item in load_items(PromptFile(path)).items:
            item.fields["prompt"].encode()

    outcome(read, "rows.parquet")


@pytest.mark.parametrize(
    "value",
    [datetime(1, 1, 1, tzinfo=UTC), Decimal("1.5"), b"\xff", {"a": 1}, [1], None, float("nan"), 3],
    ids=lambda value: type(value).__name__,
)
def test_values_that_json_does_not_have(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(table([{"prompt": value, "id": "a"}]))
    with pytest.raises(DataError, match=r"rows\.parquet row 0: field 'prompt' must be text"):
        load_items(PromptFile(path))


def test_a_table_that_states_more_than_its_file_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": "a" * 2**20}] * 64
    path.write_bytes(table(rows, compression="zstd", use_dictionary=False))
    with pytest.raises(DataError, match=r"states 67,1\d\d,\d\d\d bytes of rows"):
        load_items(PromptFile(path))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("journal")
    storage, _ = open_storage(None, folder)
    study = open_study(storage, "a/ratio", "maximize", {"space": {"gamma": [1, 2]}})
    trial = study.ask()
    trial.set_user_attr("status", "PASSED")
    study.tell(trial, 1.0)
    return (folder / "study.journal").read_bytes()


@examples(30)
@given(data=st.data())
def test_a_damaged_journal(data: st.DataObject, journal: bytes, tmp_path: Path) -> None:
    lines = journal.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    changed = mutated(json.loads(lines[at])).map(
        lambda value: b"\n".join([*lines[:at], json.dumps(value).encode(), *lines[at + 1 :], b""])
    )
    path = tmp_path / "study.journal"
    path.write_bytes(data.draw(changed | damaged(journal)))

    def read() -> None:
        storage, where = open_storage(str(path), tmp_path)
        with storage_errors(where):
            check_studies(storage, "a", {"": {"space": {"gamma": [1, 2]}}}, True, where)
            open_study(storage, "a/ratio", "maximize", {}).get_trials()

    outcome(read, "study.journal", "nothing to resume")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "h200"
    (folder / "run").mkdir(parents=True)
    rows = {"arm": ["a", "a", "b"], "status": "PASSED", "tpot": [1.0, 2.0, 3.0]}
    pd.DataFrame(rows).to_csv(folder / "run" / "repeats.csv", index=False)
    (folder / "run" / "environment.json").write_text('{"argv": ["x"], "git": {"commit": "c"}}')
    return folder


ENTRIES = [{"id": "f", "record": "run", "column": "tpot", "where": {"arm": "a"}, "unit": "ms"}]


@examples(30)
@given(data=st.data())
def test_changed_figures(data: st.DataObject, figures: Path) -> None:
    text = data.draw(
        mutated(ENTRIES).map(lambda value: yaml.safe_dump(value).encode("utf-8", "surrogatepass"))
        | damaged(yaml.safe_dump(ENTRIES).encode())
    )
    (figures / "figures.yaml").write_bytes(text)
    outcome(lambda: summarise_figures(figures), "figures.yaml", "f: ", "repeats.csv", "h200")


@pytest.mark.parametrize("record", ["../run", "/etc", "run/../../x", "a/../../../etc"])
def test_a_figure_of_another_folder(record: str, figures: Path) -> None:
    entries = [ENTRIES[0] | {"record": record}]
    (figures / "figures.yaml").write_text(yaml.safe_dump(entries))
    with pytest.raises(DataError, match="is outside h200"):
        summarise_figures(figures)


@examples(40)
@given(data=st.data())
def test_a_damaged_table_of_a_record(data: st.DataObject, figures: Path, tmp_path: Path) -> None:
    whole = (figures / "run" / "repeats.csv").read_bytes()
    folder = tmp_path / "h200"
    (folder / "run").mkdir(parents=True, exist_ok=True)
    (folder / "run" / "repeats.csv").write_bytes(data.draw(damaged(whole)))
    environment = (figures / "run" / "environment.json").read_bytes()
    (folder / "run" / "environment.json").write_bytes(
        data.draw(st.just(environment) | damaged(environment))
    )
    (folder / "figures.yaml").write_text(yaml.safe_dump(ENTRIES))
    outcome(lambda: summarise_figures(folder), "f: ", "environment.json")
