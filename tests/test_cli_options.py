"""Options made from RunConfig: one each, parsed by typer, checked by RunConfig."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from specbench.cli_options import run_parameters, split_list, split_lists
from specbench.config import RunConfig
from specbench.config_build import build_config


@pytest.fixture
def parse() -> Callable[..., RunConfig]:
    """What a command line makes of RunConfig."""
    app = typer.Typer()

    def command(**options: Any) -> RunConfig:
        return build_config(split_lists(options))

    command.__signature__ = inspect.Signature(run_parameters())  # type: ignore[attr-defined]
    app.command()(command)
    return lambda *argv: app(list(argv), standalone_mode=False)


def test_there_is_one_parameter_for_each_field() -> None:
    assert [parameter.name for parameter in run_parameters()] == list(RunConfig.model_fields)


def test_nothing_given_is_the_default(parse: Callable[..., RunConfig]) -> None:
    assert parse() == RunConfig()


VALUES: dict[str, tuple[list[str], Any]] = {
    "model": (["org/name"], "org/name"),
    "method": (["vegas,autoregressive"], ("vegas", "autoregressive")),
    "host": (["engine,vllm"], ("engine", "vllm")),
    "dataset": (["file:a.jsonl"], ("file:a.jsonl",)),
    "source": (["sample"], "sample"),
    "revision": (["abc"], "abc"),
    "model_revision": (["def"], "def"),
    "num_prompts": (["3"], 3),
    "context_len": (["1024"], 1024),
    "max_new_tokens": (["64"], 64),
    "batch_size": (["4"], 4),
    "prefill_chunk": (["256"], 256),
    "temperature": (["0.7"], 0.7),
    "top_p": (["0.9"], 0.9),
    "top_k": (["20"], 20),
    "seed": (["7"], 7),
    "repeats": (["5"], 5),
    "ignore_eos": ([], True),
    "thinking": ([], True),
    "rope_scaling": (["yarn:4"], "yarn:4"),
    "device": (["cpu"], "cpu"),
    "dtype": (["float64"], "float64"),
    "attention_backend": (["sdpa"], "sdpa"),
    "allow_eager": ([], True),
    "trust_remote_code": ([], True),
    "threads": (["2"], 2),
    "output": (["runs/a"], Path("runs/a")),
    "schedule": (["runs/t/schedule.yaml"], Path("runs/t/schedule.yaml")),
    "tuned": (["runs/a,b"], (Path("runs/a,b"),)),
    "resume": ([], True),
    "variant": (["x"], "x"),
    "gamma": (["0"], 0),
    "kept_ratio": (["1"], 1.0),
    "draft_weights": (["draft"], "draft"),
    "ngram_max": (["5"], 5),
    "ngram_min": (["3"], 3),
    "budget": (["256"], 256),
    "min_tokens": (["16"], 16),
    "score": (["logit"], "logit"),
    "queries": (["all"], "all"),
    "normaliser": (["previous"], "previous"),
    "share": (["layer"], "layer"),
    "sinks": (["4"], 4),
    "window": (["32"], 32),
    "pool": (["7"], 7),
    "dense_layers": (["1"], 1),
    "positions": (["cache-relative"], "cache-relative"),
    "draft_model": (["org/small"], "org/small"),
    "draft_window": (["256"], 256),
    "chunk": (["16"], 16),
    "top_chunks": (["8"], 8),
    "interval": (["2"], 2),
    "collect": (["all"], "all"),
    "drafts": (["tree"], "tree"),
    "tree_shape": (["4,16,16"], (4, 16, 16)),
    "nodes": (["20"], 20),
    "depth": (["5"], 5),
    "threshold": (["0.5"], 0.5),
    "vllm_arg": (['a={"b":1,"c":2}'], ('a={"b":1,"c":2}',)),
    "vllm_python": (["venv/bin/python"], Path("venv/bin/python")),
    "vllm_timeout": (["60"], 60),
    "reuse_prompts": ([], True),
    "timeout": (["90"], 90),
}
NEGATED = ("baseline", "chat_template", "graphs")


@pytest.mark.parametrize("name", list(RunConfig.model_fields))
def test_every_option_reaches_its_field(parse: Callable[..., RunConfig], name: str) -> None:
    flag = name.replace("_", "-")
    if name in NEGATED:
        assert getattr(parse(f"--no-{flag}"), name) is False
        assert getattr(parse(f"--{flag}"), name) is True
    else:
        words, expected = VALUES[name]
        assert getattr(parse(f"--{flag}", *words), name) == expected


def test_lists_may_be_repeated(parse: Callable[..., RunConfig]) -> None:
    config = parse("--method", "vegas", "--method", "autoregressive,vegas")
    assert config.method == ("vegas", "autoregressive")


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        (["aime25, codeelo"], ("aime25", "codeelo")),
        (["a,,b,"], ("a", "b")),
        (["aime25,file:x,y.jsonl"], ("aime25", "file:x,y.jsonl")),
        (["file:x,y.jsonl", "aime25"], ("file:x,y.jsonl", "aime25")),
        (["profile:x,y"], ("profile:x", "y")),
        ([""], ()),
    ],
)
def test_split_list(given_values: list[str], expected: tuple[str, ...]) -> None:
    assert split_list(given_values) == expected


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), unique=True, max_size=6)


@given(NAMES, st.data())
def test_commas_and_repeats_mean_the_same(names: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(names)))
    assert split_list([",".join(names)]) == tuple(names)
    assert split_list([",".join(names[:cut]), *names[cut:]]) == tuple(names)
