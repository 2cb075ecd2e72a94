"""Configuration files: a configuration, or one message that names the file or the option."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from specbench.analyze.config import AnalyzeConfig
from specbench.config import RunConfig, TuneConfig
from specbench.config_build import build
from specbench.errors import UsageError
from specbench.train.config import TrainConfig
from tests.support.hostile import damaged, examples, mutated, outcome

FILES: dict[type[BaseModel], dict[str, Any]] = {
    RunConfig: {
        "model": "dummy:tiny",
        "method": ["vegas", "lookup"],
        "dataset": "govreport",
        "temperature": 0.5,
        "tree-shape": [4, 2],
        "vllm_arg": ["a=1"],
        "output": "out",
        "seed": 3,
        "threshold": 0.7,
        "ignore_eos": True,
    },
    TuneConfig: {"gammas": [2, 4], "ratios": [0.1, 0.5], "budget_minutes": 3.5, "storage": "a"},
    TrainConfig: {"data": ["a", "b"], "output": "out", "max_minutes": 1.5, "window": 16},
    AnalyzeConfig: {"dataset": ["govreport"], "gamma": 3, "kept_ratio": 0.5},
}
KINDS = pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.__name__)


def read(kind: type[BaseModel], path: Path) -> BaseModel:
    made = build(kind, {}, path)
    made.model_dump_json().encode()
    again = build(kind, made.model_dump(exclude_none=True))
    assert again == made  # so that no NaN is let in either
    return made


@KINDS
@examples(30)
@given(data=st.data())
def test_changed_options(kind: type[BaseModel], data: st.DataObject, tmp_path: Path) -> None:
    values = data.draw(mutated(FILES[kind]))
    path = tmp_path / "options.yaml"
    text = yaml.safe_dump(values, allow_unicode=data.draw(st.booleans()))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    outcome(lambda: read(kind, path), "options.yaml")


@KINDS
@examples(30)
@given(data=st.data())
def test_a_damaged_file(kind: type[BaseModel], data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_bytes(data.draw(damaged(yaml.safe_dump(FILES[kind]).encode())))
    outcome(lambda: read(kind, path), "options.yaml")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghijklmn", "bcdefghijklmno", strict=True)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, r"the alias \*a is not supported in line 2"),
        ("method: &m [*m]", r"the alias \*m is not supported"),
        ("gamma: 3\ngamma: 4\n", "a key stands twice in one mapping"),
        ("a: " + "[" * 5000, "nested more than 64 deep"),
        ("model: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("seed: 2024-13-45", "'2024-13-45' is no timestamp in line 1, column 7"),
        ("seed: !!bool x", "'x' is no bool"),
        ("# " + "x" * 2**21, "it has 2,097,154 bytes"),
        ("method: [{a: b}]", "--method"),
        ("temperature: .nan", "--temperature nan: input should be a finite number"),
        ("seed: 9223372036854775808", "--seed 9223372036854775808: beyond the range of 64 bits"),
        ('output: "a\\0b"', r"--output 'a\\x00b': not a text"),
        ('model: "\\ud800"', r"\\ud800 is half of a surrogate pair"),
    ],
)
def test_what_stands_for_more_than_it_says(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        build(RunConfig, {}, path)
