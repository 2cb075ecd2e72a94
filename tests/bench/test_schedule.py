"""Which settings a schedule gives to a load, and what it refuses."""

from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.bench.arms import build_arms
from specbench.bench.schedule import Entry, Schedule, read_schedule
from specbench.bench.scheduled import resolve, settle, settled
from specbench.config import RunConfig
from specbench.errors import UsageError

TEXT = """
method: vegas
settings: {min_tokens: 4}
loads:
- {batch_size: 1, context: 2000, options: {gamma: 6, kept_ratio: 0.05}}
- {batch_size: 16, context: 2000, options: {gamma: 4, kept_ratio: 0.05}}
- {batch_size: 16, context: 20000, options: {gamma: 8, kept_ratio: 0.02}}
- {batch_size: 64, context: 2000, options: {gamma: 0, kept_ratio: 0.05}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schedule.yaml"
    path.write_text(TEXT)
    return path


def workload(name: str, prompts: int, tokens: int) -> Any:
    requests = [SimpleNamespace(token_ids=[0] * tokens)] * prompts
    return SimpleNamespace(info=SimpleNamespace(name=name), requests=requests)


loads = st.tuples(st.integers(1, 256), st.integers(1, 200_000))


@given(st.lists(loads, min_size=1, max_size=6, unique=True), loads)
def test_the_nearest_load_is_that_with_the_fewest_doublings(
    known: list[tuple[int, int]], load: tuple[int, int]
) -> None:
    schedule = Schedule("vegas", {}, tuple(Entry(*each, {}) for each in known))
    batch, context = load
    found = schedule.nearest(batch, context)
    nearest = min(abs(log2(batch / b)) + abs(log2(context / c)) for b, c in known)
    assert found.distance(batch, context) == pytest.approx(nearest, abs=1e-8)
    if load in known:
        assert (found.batch_size, found.context) == load


def test_of_equals_the_smaller_load_is_taken(file: Path) -> None:
    schedule = read_schedule(file)
    assert schedule.nearest(4, 2000).batch_size == 1
    assert schedule.nearest(5, 2000).batch_size == 16


def test_what_lies_outside_the_measured_range_is_said(file: Path) -> None:
    schedule = read_schedule(file)
    assert schedule.outside(16, 1900) is None, "means of other prompts differ a little"
    assert schedule.outside(128, 2000) == "batch 128 is outside the measured 1 to 64"
    assert schedule.outside(128, 50_000) == (
        "batch 128 is outside the measured 1 to 64 and context 50,000 is outside the measured "
        "2,000 to 20,000"
    )


def test_each_dataset_gets_the_settings_of_its_load(file: Path) -> None:
    schedule = read_schedule(file)
    config = settle(schedule, RunConfig(schedule=file))
    arms = build_arms(config)
    short, long, few = (
        *(workload("short", 64, 2100), workload("long", 16, 19_000), workload("few", 1, 2000)),
    )
    one, cells, said = resolve(schedule, arms, [short], 64, config)
    assert ([arm.name for arm in one], cells) == (["autoregressive", "vegas"], None)
    assert (one[1].method.gamma, vars(one[1].method.parameters)["min_tokens"]) == (0, 4)
    assert said[0].startswith("short: vegas with no drafts, the schedule's nearest load (batch 64")
    all_arms, cells, said = resolve(schedule, arms, [short, long, few], 64, config)
    names = [arm.name for arm in all_arms[1:]]
    assert names == [
        *("vegas no drafts", "vegas gamma 8, kept_ratio 0.02", "vegas gamma 6, kept_ratio 0.05"),
    ]
    assert [arm.method.gamma for arm in all_arms[1:]] == [0, 8, 6]
    assert cells is not None
    assert {cell for cell in cells if cell[1] != "autoregressive"} == {
        *zip(("short", "long", "few"), names, strict=True)
    }
    assert {cell[0] for cell in cells if cell[1] == "autoregressive"} == {"short", "long", "few"}
    assert len(said) == 3


def test_a_method_that_cannot_go_without_drafts_becomes_the_baselines() -> None:
    entry = Entry(1, 100, {"method": ("autoregressive",)})
    schedule = Schedule("longspec", {"draft_weights": "dummy"}, (entry,))
    config = settle(schedule, RunConfig())
    arms, _, said = resolve(schedule, build_arms(config), [workload("a", 1, 100)], 1, config)
    assert [(arm.name, arm.method.name) for arm in arms] == [
        *(("autoregressive", "autoregressive"), ("longspec", "autoregressive"))
    ]
    assert "longspec with no drafts" in said[0]


def test_a_schedule_names_the_method_unless_the_user_does(file: Path) -> None:
    file.write_text(TEXT.replace("vegas", "magicdec").replace("min_tokens: 4", "variant: quest"))
    config = settled(RunConfig(schedule=file))
    assert (config.method, config.variant) == (("magicdec",), "quest")
    both = settled(RunConfig(schedule=file, method=("magicdec", "lookup")))
    assert both.method == ("magicdec", "lookup")
    assert settled(both) == both
    with pytest.raises(UsageError, match="is of magicdec, which is not among lookup"):
        settled(RunConfig(schedule=file, method=("lookup",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 3}, "--gamma is what --schedule chooses"),
        ({"kept_ratio": 0.1}, "--kept-ratio is what --schedule chooses"),
        ({"min_tokens": 9}, "--min-tokens 9 is not what the schedule was tuned with: 4"),
    ],
)
def test_options_that_contradict_it(file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settled(RunConfig(schedule=file, **options))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: vegas", "loads: Field required"),
        ("method: vegas\nloads: []", "it has no loads"),
        ("method: vega\nloads: [{batch_size: 1, context: 9, options: {}}]", "vegas"),
        ("method: vegas\nloads: [{batch_size: 0, context: 9, options: {}}]", "loads.0.batch_size"),
        ("method: vegas\nloads: [{batch_size: 1, context: 9, options: {gama: 1}}]", "gama is no"),
        ("method: vegas\nloads: [{batch_size: 1, context: 9}]", "loads.0.options"),
        ("- 1", "must hold a mapping"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_schedule(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_schedule(file)


def test_its_settings_do_not_become_those_of_other_methods(file: Path) -> None:
    both = {"schedule": file, "method": ("vegas", "magicdec")}
    with pytest.raises(UsageError, match="--min-tokens 4, a setting of magicdec too"):
        settled(RunConfig(**both))
    assert settled(RunConfig(**both, min_tokens=4)).min_tokens == 4
    assert settled(RunConfig(schedule=file, method=("vegas", "lookup"))).min_tokens == 4


def test_a_setting_out_of_range_is_named(file: Path) -> None:
    file.write_text(TEXT.replace("gamma: 8", "gamma: 99"))
    schedule = read_schedule(file)
    config = settle(schedule, RunConfig(schedule=file))
    with pytest.raises(UsageError, match="gamma"):
        resolve(schedule, build_arms(config), [workload("a", 16, 20_000)], 16, config)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    entries = (
        Entry(1, 100, {"tree_shape": (1, 4, 4)}),
        Entry(4, 100, {"method": ("autoregressive",)}),
    )
    schedule = Schedule("longspec", {"draft_weights": "dummy"}, entries)
    schedule.write(tmp_path / "schedule.yaml")
    assert read_schedule(tmp_path / "schedule.yaml") == schedule
