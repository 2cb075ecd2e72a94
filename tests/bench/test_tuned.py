"""Arms with the settings that tunings found, beside others in one run."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.bench.run import run_benchmark
from specbench.bench.scheduled import settled
from specbench.bench.tuned import tuned_arms
from specbench.config_build import build_config
from specbench.errors import UsageError
from tests.support.folder import write_model, write_prompts


def tuning(folder: Path, name: str, text: str) -> Path:
    place = folder / name
    place.mkdir()
    (place / "tuned.yaml").write_text(text)
    return place


@pytest.fixture
def vegas(tmp_path: Path) -> Path:
    return tuning(tmp_path, "v", "model: other\nmethod: [vegas]\ngamma: 5\nkept_ratio: 0.25\n")


@pytest.fixture
def quest(tmp_path: Path) -> Path:
    return tuning(tmp_path, "q", "method: [magicdec]\nvariant: quest\ngamma: 2\nkept_ratio: 0.5\n")


def test_each_tuning_is_an_arm_with_its_own_settings(vegas: Path, quest: Path) -> None:
    choices: list[str] = []
    file = vegas / "tuned.yaml"
    config = build_config({"tuned": (quest, file), "model": "mine", "gamma": 7})
    arms = tuned_arms(config, choices)
    assert [(arm.name, arm.method.gamma) for arm in arms] == [
        *(("magicdec-quest-tuned", 2), ("vegas-tuned", 5))
    ]
    assert arms[1].info.parameters["kept_ratio"] == 0.25
    assert choices == [
        f"magicdec-quest-tuned: variant quest, gamma 2, kept-ratio 0.5, of {quest / 'tuned.yaml'}",
        f"vegas-tuned: gamma 5, kept-ratio 0.25, of {file}; tuned for model other",
    ]


def test_two_tunings_of_one_method_go_by_their_folders(tmp_path: Path, vegas: Path) -> None:
    again = tuning(tmp_path, "long", "method: [vegas]\ngamma: 3\n")
    config = build_config({"tuned": (vegas, again)})
    names = [arm.name for arm in tuned_arms(config, [])]
    assert names == ["vegas-tuned", "vegas-tuned (long)"]
    with pytest.raises(UsageError, match=r"vegas-tuned \(long\) is an arm already"):
        tuned_arms(build_config({"tuned": (vegas, again, again / "tuned.yaml")}), [])


def test_no_drafts_is_no_arm_of_its_own(tmp_path: Path) -> None:
    place = tuning(tmp_path, "none", "method: [autoregressive]\n")
    choices: list[str] = []
    assert tuned_arms(build_config({"tuned": (place,)}), choices) == []
    assert "no drafts is its choice; the arm autoregressive is that" in choices[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: [vegas, lookup]\n", "the settings of one method, not of several"),
        ("method: [all]\n", "the settings of one method, not of several"),
        ("method: [vllm]\n", "vllm is not tuned; give --method vllm"),
        ("method: [magicdec]\nvariant: all\n", "one arm, not magicdec-stream, magicdec-snapkv"),
        ("method: [vegas]\ngama: 3\n", "Did you mean 'gamma'"),
        ("method: [vegas]\ngamma: 65\n", "--gamma 65"),
    ],
)
def test_what_is_no_tuning_is_refused(tmp_path: Path, text: str, message: str) -> None:
    place = tuning(tmp_path, "bad", text)
    with pytest.raises(UsageError, match=message):
        tuned_arms(build_config({"tuned": (place,)}), [])


def test_a_folder_without_a_tuning_and_a_schedule_beside_are_refused(
    tmp_path: Path, vegas: Path
) -> None:
    with pytest.raises(UsageError, match=r"it has no tuned\.yaml"):
        tuned_arms(build_config({"tuned": (tmp_path,)}), [])
    with pytest.raises(UsageError, match="cannot read the configuration"):
        tuned_arms(build_config({"tuned": (tmp_path / "nowhere",)}), [])
    config = build_config({"tuned": (vegas,), "schedule": tmp_path / "schedule.yaml"})
    with pytest.raises(UsageError, match="--tuned and --schedule both choose settings"):
        tuned_arms(config, [])


def test_tunings_take_the_default_methods_place_only(vegas: Path) -> None:
    alone = settled(build_config({"tuned": (vegas,)}))
    assert alone.method == ()
    assert settled(alone) == alone
    assert settled(build_config({"tuned": (vegas,), "method": "lookup"})).method == ("lookup",)
    assert settled(build_config({})).method == ("vegas",)


def test_one_run_has_all_of_them(tmp_path: Path, vegas: Path, quest: Path) -> None:
    model = write_model(tmp_path / "model", seed=3)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [40, 60])
    values: dict[str, Any] = {
        "model": str(model),
        "dataset": f"file:{prompts}",
        "max_new_tokens": 6,
        "batch_size": 2,
        "repeats": 1,
        "method": "lookup",
        "tuned": (vegas, quest),
        "output": tmp_path / "out",
    }
    text = io.StringIO()
    status = run_benchmark(
        build_config(values), console=Console(file=text, width=160), argv=["specbench"]
    )
    assert status == 0, text.getvalue()
    arms = json.loads((tmp_path / "out" / "run.json").read_text())["arms"]
    assert [(arm["name"], arm["parameters"].get("gamma")) for arm in arms] == [
        ("autoregressive", None),
        ("lookup", arms[1]["parameters"]["gamma"]),
        ("vegas-tuned", 5),
        ("magicdec-quest-tuned", 2),
    ]
    assert text.getvalue().count("exact 2/2") == 3
