"""Methods hosted by vLLM: which arms they make, what vLLM is told, and their place in the table."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from specbench.bench.arms import build_arms, check_capabilities
from specbench.bench.run import run_benchmark
from specbench.config import TuneConfig
from specbench.config_build import build_config
from specbench.errors import DataError, UsageError
from specbench.integrations.vllm.settings import read_settings
from specbench.methods.vllm.hosted import Hosted
from specbench.methods.vllm.method import Vllm
from specbench.tune.space import build_space
from tests.support.folder import write_model, write_prompts
from tests.support.vllm import ROOT, fake_python


def arms(**values: Any) -> dict[str, Any]:
    config = build_config({"host": ("vllm",), **values})
    return {arm.name: arm.method for arm in build_arms(config)}


def words(method: Vllm, rows: int) -> dict[str, str]:
    """What vLLM's command line gets, by flag."""
    flat = method.engine_arguments(rows)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_a_hosted_method_comes_with_its_control_and_takes_the_engines_place() -> None:
    assert list(arms(method="vegas")) == ["autoregressive", "vllm-vegas", "vllm-v1-sync"]
    assert list(arms(method=("vegas", "vllm"), baseline=False)) == [
        "vllm",
        "vllm-vegas",
        "vllm-v1-sync",
    ]
    both = arms(method="vegas", host=("engine", "vllm"))
    assert list(both) == ["autoregressive", "vegas", "vllm-vegas", "vllm-v1-sync"]
    stream = arms(method="magicdec", baseline=False)
    assert list(stream) == ["vllm-magicdec-stream", "vllm-v1-sync"]


def test_vllm_gets_drafter_backend_and_a_graph_for_the_whole_batch() -> None:
    made = arms(method="vegas", gamma=8, kept_ratio=0.05)["vllm-vegas"]
    told = words(made, rows=64)
    assert told["--attention-backend"] == "CUSTOM"
    assert told["--max-num-seqs"] == "66"
    assert told["--max-cudagraph-capture-size"] == "608"
    assert json.loads(told["--speculative-config"]) == {
        "model": "specbench.integrations.vllm.VegasProposer",
        "num_speculative_tokens": 8,
    }
    # a small batch keeps the graphs that vLLM makes anyway
    assert words(made, rows=4)["--max-cudagraph-capture-size"] == "512"
    assert made.gamma == 8


@pytest.mark.parametrize("gamma", [1, 4, 6, 8, 16])
@pytest.mark.parametrize("rows", [1, 10, 33, 57, 64, 100])
def test_some_graph_holds_a_whole_batch(rows: int, gamma: int) -> None:
    """By vLLM's rule: sizes in steps, rounded up to whole requests, within both limits."""
    told = words(arms(method="vegas", gamma=gamma)["vllm-vegas"], rows)
    largest, requests = (
        int(told[flag]) for flag in ("--max-cudagraph-capture-size", "--max-num-seqs")
    )
    chunk = gamma + 1
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    rounded = {-(-size // chunk) * chunk for size in sizes}
    captured = [x for x in rounded if x <= min(largest, requests * chunk)]
    assert max(captured) >= rows * chunk


def test_the_plug_in_reads_what_it_is_told() -> None:
    from types import SimpleNamespace

    options = {"gamma": 3, "kept_ratio": 0.05, "score": "logit", "share": "layer", "sinks": 4}
    for method in ("vegas", "magicdec"):
        given = options if method == "vegas" else {"gamma": 3, "budget": 96, "sinks": 4}
        made = next(m for m in arms(method=method, **given).values() if isinstance(m, Hosted))
        told = words(made, rows=2)
        config = SimpleNamespace(
            additional_config=json.loads(told["--additional-config"]),
            speculative_config=SimpleNamespace(num_speculative_tokens=3),
        )
        settings = read_settings(config)
        assert settings.method == method
        assert settings.parameters.model_dump(include=set(given)) == given


def test_vllms_interpreter_finds_specbench_and_what_it_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what is installed beside specbench: vLLM's environment has its own."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    made = arms(method="vegas")["vllm-vegas"]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    own = made.environment()["PYTHONPATH"]
    assert [entry.name for entry in Path(own).iterdir()] == ["specbench"]
    assert (Path(own) / "specbench").resolve() == ROOT / "specbench"
    monkeypatch.setenv("PYTHONPATH", "/kit/site")
    assert made.environment() == {"PYTHONPATH": f"{own}:/kit/site"}
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="SPECBENCH_CACHE names another place"):
        made.environment()


def test_the_control_is_v1_without_speculation_and_without_overlap() -> None:
    control = arms(method="vegas", vllm_arg=("enforce_eager=true",))["vllm-v1-sync"]
    assert control.engine_arguments(64) == ["--no-async-scheduling"]
    assert control.environment() == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert control.gamma == 0
    assert control.parameters.vllm_arg == ("enforce_eager=true",)


def test_engine_arguments_of_the_user_win() -> None:
    made = arms(method="vegas", vllm_arg=("max_num_seqs=32", "attention-backend=FLASH_ATTN"))
    told = words(made["vllm-vegas"], rows=64)
    assert "--max-num-seqs" not in told
    assert "--attention-backend" not in told


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "lookup"}, "inside vLLM there are vegas and magicdec, not lookup"),
        ({"method": "magicdec", "variant": "quest"}, "its variant stream there, not quest"),
        ({"method": "vegas", "queries": "all"}, "use first\\+last or last"),
        ({"method": "vegas", "kept_ratio": 0.1, "pool": 3}, "--pool is no setting of"),
        (
            {"method": "vegas", "vllm_arg": ('speculative_config={"method": "ngram"}',)},
            "run it apart",
        ),
        ({"method": "vegas", "vllm_arg": ("model=other",)}, "set by --model"),
        ({"method": "vegas", "vllm_arg": ("speculative_conf={}",)}, "run it apart"),
    ],
)
def test_what_vllm_does_not_host_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arms(**values)


def test_it_has_the_types_of_vllms_flash_attention() -> None:
    config = build_config({"method": "vegas", "host": ("vllm",), "dtype": "float32"})
    hosted = next(arm for arm in build_arms(config) if arm.name == "vllm-vegas")
    with pytest.raises(UsageError, match="vllm-vegas has no --dtype float32: use bfloat16"):
        check_capabilities(hosted, config)


def test_tuning_is_the_engines() -> None:
    with pytest.raises(UsageError, match="leave out --host"):
        build_space(TuneConfig(method=("vegas",), host=("vllm",)))


def test_one_table_holds_the_hosted_method_and_its_control(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", seed=3)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [40, 17])
    (tmp_path / "bin").mkdir()
    values = {
        "model": str(model),
        "dataset": f"file:{prompts}",
        "vllm_python": fake_python(tmp_path / "bin"),
        "output": tmp_path / "out",
        **{"method": "vegas", "host": ("vllm",), "gamma": 2, "dtype": "bfloat16"},
        **{"max_new_tokens": 8, "batch_size": 2, "num_prompts": 2, "repeats": 1},
    }
    text = io.StringIO()
    console = Console(file=text, width=160)
    assert run_benchmark(build_config(values), console=console, argv=["specbench"]) == 0
    table = pd.read_csv(tmp_path / "out" / "throughput.csv").set_index("arm")
    assert list(table.index) == ["autoregressive", "vllm-vegas", "vllm-v1-sync"]
    assert set(table["status"]) == {"PASSED"}
    assert table.loc["vllm-vegas", "output_throughput"] > 0
    acceptance = pd.read_csv(tmp_path / "out" / "acceptance.csv").set_index("arm")
    assert acceptance.loc["vllm-vegas", "gamma"] == 2
    assert 1 < acceptance.loc["vllm-vegas", "spec_decode_acceptance_length"] <= 2
    assert "'attention_backend': 'CUSTOM'" in (tmp_path / "out" / "vllm-vegas.log").read_text()
    assert "runner: 0" in (tmp_path / "out" / "vllm-v1-sync.log").read_text()
    assert "runner: None" in (tmp_path / "out" / "vllm-vegas.log").read_text()
