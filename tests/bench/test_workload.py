"""What a run's prompts come from, and which contexts are accepted."""

from pathlib import Path

import pytest

from specbench.bench.defaults import context_limit, may_extend
from specbench.bench.workload import build_workloads
from specbench.config import RunConfig
from specbench.config_build import build_config
from specbench.datasets import get_dataset
from specbench.engine.loader import read_model_config
from specbench.errors import ContextTooLongError, UsageError
from tests.support.folder import write_prompts
from tests.support.tiny import tiny_config


def test_an_explicit_context_may_rest_on_yarn_where_the_default_does() -> None:
    model = read_model_config("dummy:qwen3-8b")
    dataset = get_dataset("longbench-v2")
    config = RunConfig(device="cuda", context_len=100_000)
    assert may_extend(config, model)
    assert context_limit(config, model, dataset, 512) == (100_000, None)
    with pytest.raises(ContextTooLongError):
        context_limit(RunConfig(device="cuda", context_len=200_000), model, dataset, 512)
    with pytest.raises(ContextTooLongError, match="yarn"):
        context_limit(RunConfig(device="cpu", context_len=100_000), model, dataset, 512)


def test_two_datasets_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_prompts(tmp_path / name / "p.jsonl", [5])
    files = tuple(f"file:{tmp_path / name / 'p.jsonl'}" for name in ("a", "b"))
    config = RunConfig(device="cpu", dataset=files)
    with pytest.raises(UsageError, match=r"file:p\.jsonl"):
        build_workloads(config, tiny_config(), None)


def test_doubles_are_dropped() -> None:
    config = build_config({"method": ["vegas", "vegas"], "dataset": ["aime25", "aime25"]})
    assert config.method == ("vegas",)
    assert config.dataset == ("aime25",)
