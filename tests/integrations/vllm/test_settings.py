"""Settings from --additional-config and YAML, and what is refused with its reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.config import TuneConfig
from specbench.errors import UsageError
from specbench.integrations.vllm.refusals import check
from specbench.integrations.vllm.settings import Settings, read_settings
from specbench.methods.magicdec.stream import StreamParameters
from specbench.methods.vegas import VegasParameters
from specbench.tune.report import write_tuned
from specbench.tune.space import Setting, build_space


def read(given: Any, gamma: int = 6) -> Settings:
    return read_settings(
        SimpleNamespace(
            additional_config=given,
            speculative_config=SimpleNamespace(num_speculative_tokens=gamma),
        )
    )


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, {"specbench": {}}])
def test_without_settings_vegas_has_its_defaults_and_vllms_gamma(given: Any) -> None:
    settings = read(given, gamma=8)
    assert settings == Settings(
        "vegas", VegasParameters(gamma=8, normaliser="exact", queries="first+last")
    )


def test_settings_of_method_and_plug_in_stand_side_by_side(tmp_path: Path) -> None:
    settings = read(
        {"specbench": {"kept_ratio": 0.05, "graphs": False, "stats": str(tmp_path / "s.json")}}
    )
    assert settings.parameters == VegasParameters(
        gamma=6, kept_ratio=0.05, normaliser="exact", queries="first+last"
    )
    assert (settings.graphs, settings.stats) == (False, tmp_path / "s.json")


def test_magicdec_is_its_stream() -> None:
    settings = read({"specbench": {"method": "magicdec", "budget": 128, "sinks": 4}})
    assert settings.parameters == StreamParameters(gamma=6, budget=128, sinks=4)


def test_what_specbench_tune_wrote_fits(tmp_path: Path) -> None:
    config = TuneConfig(method=("vegas",), model="org/model", num_prompts=7)
    write_tuned(tmp_path, config.run_config(), build_space(config), Setting(0.03, 5))
    for given in (str(tmp_path / "tuned.yaml"), {"config": str(tmp_path / "tuned.yaml")}):
        settings = read({"specbench": given}, gamma=5)
        assert settings.parameters == VegasParameters(
            gamma=5, kept_ratio=0.03, normaliser="exact", queries="first+last"
        )
    with pytest.raises(UsageError, match="gamma is 5 here and num_speculative_tokens 6"):
        read({"specbench": str(tmp_path / "tuned.yaml")}, gamma=6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "quest"}, "unknown method of the vLLM plug-in 'quest'"),
        ({"kept_ratios": 0.1}, "Did you mean 'kept_ratio'"),
        ({"kept_ratio": 2}, "kept_ratio: Input should be less than or equal to 1"),
        ({"gamma": 4}, "give both the same value"),
        ({"queries": "all"}, "use first\\+last or last"),
        ({"score": "random"}, "use weight or logit"),
        ({"normaliser": "previous"}, "use exact"),
        ({"method": "magicdec", "positions": "cache-relative"}, "use absolute"),
        ("nowhere.yaml", "cannot read nowhere.yaml"),
        (["vegas"], "must be an object or a path"),
    ],
)
def test_a_wrong_setting_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read({"specbench": given})


def config(**changes: Any) -> Any:
    """A VllmConfig as the refusals see it; a change is given by the path of its field."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(
            use_mla=False,
            quantization=None,
            enable_sleep_mode=False,
            get_sliding_window=lambda: None,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, tensor_parallel_size=2, decode_context_parallel_size=1
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=6),
        offload_config=SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=0)),
        lora_config=None,
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        owner = made
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    return made


@pytest.mark.parametrize("version", ["0.25.1", "0.30.0", "0.33.0", "0.33.0rc1+cu130"])
def test_what_is_supported_is_let_through(version: str) -> None:
    check(config(), version)


def test_a_window_that_is_stated_but_not_used_is_let_through() -> None:
    model = {"model_config__get_sliding_window": lambda: 32768}
    unused = SimpleNamespace(use_sliding_window=False)
    check(config(**model, model_config__hf_text_config=unused), "0.30.0")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_config__use_mla": True}, "multi-head latent attention"),
        ({"model_config__get_sliding_window": lambda: 4096}, "sliding-window attention"),
        ({"model_config__quantization": "awq"}, "quantised by awq"),
        ({"model_config__enable_sleep_mode": True}, "sleep mode"),
        ({"cache_config__cache_dtype": "fp8_e4m3"}, "KV cache is fp8_e4m3"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__enable_dbo": True}, "dual batch overlap"),
        ({"lora_config": object()}, "LoRA"),
        ({"offload_config__uva__cpu_offload_gb": 4}, "offloaded"),
        ({"speculative_config__num_speculative_tokens": 65}, "between 1 and 64"),
        (
            {"speculative_config__num_speculative_tokens_per_batch_size": [(1, 8, 4)]},
            "gamma is fixed",
        ),
    ],
)
def test_what_is_not_supported_is_refused_with_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        check(config(**changes), "0.30.0")


@pytest.mark.parametrize("version", ["0.24.9", "0.34.0", "1.0.0"])
def test_an_untested_vllm_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"{version} is outside the tested versions 0.25 to 0.33"):
        check(config(), version)


def test_every_reason_is_said_at_once() -> None:
    with pytest.raises(UsageError, match=r"MLA.*LoRA"):
        check(config(model_config__use_mla=True, lora_config=object()), "0.30.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- vegas", "must hold keys and values"),
        ("a: [", "is no YAML"),
        ("1: 2", "setting of vegas '1'"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read({"specbench": str(file)})
