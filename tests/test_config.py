"""RunConfig: defaults, YAML under the command line, and what bad values get."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specbench.config import METHOD_FIELDS, RunConfig
from specbench.config_build import build_config, read_yaml
from specbench.errors import UsageError


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_main_command() -> None:
    config = build_config({})
    assert config == RunConfig()
    assert config.method == ("vegas",)
    assert config.dataset == ("longbench-v2",)
    assert config.baseline
    assert config.temperature == 0


def test_every_field_has_help_and_method_fields_exist() -> None:
    assert all(field.description for field in RunConfig.model_fields.values())
    assert set(METHOD_FIELDS) <= set(RunConfig.model_fields)


def test_a_configuration_cannot_be_changed() -> None:
    config = RunConfig()
    with pytest.raises(ValidationError):
        config.gamma = 3  # type: ignore[misc]


def test_command_line_overrides_the_file_and_none_does_not(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "gamma: 4\nkept-ratio: 0.2\nmax_new_tokens: 9\nbaseline: no\n")
    config = build_config({"gamma": 2, "kept_ratio": None, "baseline": None}, path)
    assert (config.gamma, config.kept_ratio, config.max_new_tokens) == (2, 0.2, 9)
    assert config.baseline is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method: vegas", ("vegas",)),
        ("method: [vegas, autoregressive]", ("vegas", "autoregressive")),
    ],
)
def test_a_file_names_one_method_or_several(
    tmp_path: Path, text: str, expected: tuple[str, ...]
) -> None:
    assert build_config({}, yaml_file(tmp_path, text)).method == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", -1),
        ("gamma", 65),
        ("gamma", "six"),
        ("kept_ratio", 0),
        ("kept_ratio", 1.01),
        ("kept_ratio", float("nan")),
        ("min_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("num_prompts", 0),
        ("context_len", 0),
        ("max_new_tokens", -5),
        ("batch_size", 0),
        ("repeats", 0),
        ("sinks", -1),
        ("device", "tpu"),
        ("dtype", "int8"),
        ("score", "rank"),
        ("queries", "middle"),
        ("share", "model"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_option(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        build_config({name: value})
    message = str(caught.value)
    assert message.startswith(f"--{name.replace('_', '-')} {value!r}: ")
    assert "\n" not in message
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("value", [1, 0.5, 1e-3])
def test_the_whole_range_of_the_ratio_is_accepted(value: float) -> None:
    assert build_config({"kept_ratio": value}).kept_ratio == value


def test_several_bad_values_are_all_reported() -> None:
    with pytest.raises(UsageError, match=r"(?s)--top-k.*; .*--gamma|--gamma.*; .*--top-k"):
        build_config({"gamma": -1, "top_k": -1})


def test_an_unknown_key_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown option 'gama'.*mean 'gamma'"):
        build_config({}, yaml_file(tmp_path, "gama: 3\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma: [1", "not valid YAML"),
        ("- gamma\n", "must hold a mapping of options, not list"),
        ("just words\n", "must hold a mapping of options, not str"),
    ],
)
def test_a_file_that_holds_no_options_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        build_config({}, path)
    assert "run.yaml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yaml: No such file"):
        build_config({}, tmp_path / "nothing.yaml")
    with pytest.raises(UsageError, match="cannot read the configuration"):
        build_config({}, tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"model: caf\xe9\n")
    with pytest.raises(UsageError, match="not valid YAML"):
        build_config({}, tmp_path / "latin.yaml")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_yaml(yaml_file(tmp_path, "# nothing yet\n")) == {}
