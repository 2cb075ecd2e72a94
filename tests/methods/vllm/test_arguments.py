"""Which arms the vLLM options make, and which words vLLM's command line gets."""

import pytest

from specbench.bench.arms import build_arms, check_capabilities
from specbench.config_build import build_config
from specbench.errors import UsageError
from specbench.methods.vllm.method import Vllm
from specbench.methods.vllm.worker import RefusedError, installed, to_words

NGRAM = 'speculative_config={"method": "ngram", "num_speculative_tokens": 5}'


def arms(*arguments: str) -> dict[str, Vllm]:
    config = build_config({"method": "vllm", "vllm_arg": arguments, "baseline": False})
    made = {arm.name: arm.method for arm in build_arms(config)}
    assert all(isinstance(method, Vllm) for method in made.values())
    return made  # type: ignore[return-value]


def test_plain_vllm_is_one_arm_that_does_not_draft() -> None:
    made = arms()
    assert list(made) == ["vllm"]
    assert made["vllm"].gamma == 0
    assert made["vllm"].report() == {"vllm_arg": [], "vllm_python": None}
    assert not made["vllm"].lossless


def test_a_speculative_config_is_an_arm_beside_plain_vllm_and_shares_the_rest() -> None:
    made = arms("max_num_batched_tokens=4096", NGRAM)
    assert list(made) == ["vllm", "vllm-ngram"]
    assert made["vllm"].parameters.vllm_arg == ("max_num_batched_tokens=4096",)
    assert made["vllm-ngram"].parameters.vllm_arg == ("max_num_batched_tokens=4096", NGRAM)
    assert made["vllm-ngram"].gamma == 5
    assert made["vllm-ngram"].report()["gamma"] == 5


def test_two_speculative_configs_of_one_method_keep_apart() -> None:
    other = 'speculative_config={"method": "ngram", "num_speculative_tokens": 3}'
    assert list(arms(NGRAM, other)) == ["vllm", "vllm-ngram-1", "vllm-ngram-2"]


def test_a_draft_model_names_its_arm() -> None:
    made = arms('speculative_config={"model": "org/Draft 0.5B", "num_speculative_tokens": 2}')
    assert list(made)[1] == "vllm-Draft-0.5B"


def test_the_autoregressive_arm_comes_first_and_settings_of_vllm_need_vllm() -> None:
    config = build_config({"method": ("vllm", "vegas")})
    assert [arm.name for arm in build_arms(config)] == ["autoregressive", "vllm", "vegas"]
    with pytest.raises(UsageError, match="--vllm-arg is no setting of autoregressive, vegas"):
        build_arms(build_config({"method": "vegas", "vllm_arg": ("enforce_eager",)}))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("model=other", "set by --model"),
        ("dtype=auto", "set by --dtype"),
        ("enable_prefix_caching=false", "the decode pass needs it"),
        ("=3", "expected KEY=VALUE"),
        ("--enforce-eager", "expected KEY=VALUE"),
        ("speculative_config={'method': 'ngram'}", "not JSON"),
        ("speculative_config=3", "expected a JSON object"),
    ],
)
def test_what_the_run_sets_and_what_is_no_argument_is_refused(argument: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arms(argument)


def test_float64_is_refused_before_anything_is_loaded() -> None:
    config = build_config({"method": "vllm", "dtype": "float64", "baseline": False})
    with pytest.raises(UsageError, match="vllm has no --dtype float64: use float32"):
        check_capabilities(build_arms(config)[0], config)


class Arguments:
    """As vLLM's: a dataclass's annotations tell flags from values."""

    enforce_eager: bool = False
    async_scheduling: "bool | None" = None
    max_num_batched_tokens: "int | None" = None
    speculative_config: "dict | None" = None


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("enforce_eager", ["--enforce-eager"]),
        ("enforce_eager=true", ["--enforce-eager"]),
        ("enforce-eager=False", ["--no-enforce-eager"]),
        ("async_scheduling=false", ["--no-async-scheduling"]),
        ("max_num_batched_tokens=8192", ["--max-num-batched-tokens=8192"]),
        ('speculative_config={"a": "b=c"}', ['--speculative-config={"a": "b=c"}']),
        ("compilation-config.mode=0", ["--compilation-config.mode=0"]),
        ("unknown=true", ["--unknown=true"]),
    ],
)
def test_words(pair: str, words: list[str]) -> None:
    assert to_words(pair, Arguments) == words


@pytest.mark.parametrize("version", ["0.25.0", "0.25.1", "0.30.0+cpu", "0.33.2"])
def test_supported_versions(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("specbench.methods.vllm.worker.metadata.version", lambda name: version)
    assert installed() == ("vllm", version)


@pytest.mark.parametrize("version", ["0.24.9", "0.34.0", "1.0.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("specbench.methods.vllm.worker.metadata.version", lambda name: version)
    with pytest.raises(RefusedError, match=rf"vllm {version} is outside .* 0\.25 to 0\.33"):
        installed()
