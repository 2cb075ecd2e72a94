"""vLLM's settings: which interpreter, which engine arguments, and the arms they make."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field

from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.methods.base import Capabilities, Method, Parameters
from specbench.parsing import parse_json, shown

SPECULATIVE = "speculative_config"
# What makes the arms comparable is the run's to set; the option that sets it.
_RESERVED = {
    "model": "--model",
    "tokenizer": "--model",
    "revision": "--model-revision",
    "skip_tokenizer_init": "nothing: token ids go in and out",
    "dtype": "--dtype",
    "trust_remote_code": "--trust-remote-code",
    "enable_prefix_caching": "nothing: the decode pass needs it on (docs/methodology.md)",
    "no_enable_prefix_caching": "nothing: the decode pass needs it on (docs/methodology.md)",
    "stream_interval": "nothing: tokens are counted step by step, as they are made",
    "disable_log_stats": "nothing: the counters come from vLLM's statistics",
}
_LONGEST_LABEL = 80
_KEY = re.compile(r"[A-Za-z][\w.-]*")


class VllmParameters(Parameters):
    """Settings of the arms that vLLM runs."""

    vllm_arg: tuple[str, ...] = Field(
        (), description="Engine argument KEY=VALUE for vLLM; a speculative_config is a further arm."
    )
    vllm_python: Path | None = Field(None, description="The interpreter that has vLLM.")
    vllm_timeout: int = Field(1800, ge=1, description="Seconds without news that end vLLM.")


class Vllm(Method):
    """vLLM as it is, or with its own speculation.

    What it emits is its own business: its agreement with the autoregressive arm is reported, and
    is no verdict.

    Source: Kwon et al., "PagedAttention", SOSP 2023; github.com/vllm-project/vllm.
    """

    name = "vllm"
    summary = "stock vLLM in its own process; each speculative_config is an arm beside it"
    paper = "arXiv 2309.06180"
    lossless = False
    capabilities = Capabilities(dtypes=("float32", "bfloat16", "float16"))
    parameters_type = VllmParameters
    parameters: VllmParameters

    @property
    def gamma(self) -> int:
        """Drafts of a step, where the arm speculates and says how many."""
        number = self.speculation.get("num_speculative_tokens")
        return number if isinstance(number, int) else 0

    @property
    def max_model_len(self) -> int:
        """Its own `max_model_len`, in tokens; 0 where none was given as a number."""
        given = dict(map(split_argument, self.parameters.vllm_arg)).get("max_model_len", "")
        return int(given) if given.isdecimal() else 0

    @property
    def speculation(self) -> dict[str, Any]:
        """The arm's `speculative_config`, empty without one."""
        found = [
            text
            for key, text in map(split_argument, self.parameters.vllm_arg)
            if key == SPECULATIVE
        ]
        return _speculation(found[0]) if found else {}

    @classmethod
    def arms(cls, config: RunConfig) -> dict[str, Method]:
        """Plain vLLM, and an arm for every `speculative_config` among the engine arguments.

        Raises
        ------
        UsageError
            An argument that is no KEY=VALUE or that the run sets itself, or a speculative_config
            that is no JSON object.
        """
        parameters = cls.from_config(config).parameters
        shared: list[tuple[str, str]] = []
        speculative: list[tuple[str, str]] = []
        for argument in parameters.vllm_arg:
            key, value = check_argument(argument)
            (speculative if key == SPECULATIVE else shared).append((argument, value))
        plain = tuple(argument for argument, _ in shared)
        made: dict[str, Method] = {cls.name: cls(_with(parameters, plain))}
        names = [f"{cls.name}-{_label(_speculation(value))}" for _, value in speculative]
        seen: Counter[str] = Counter()
        for name, (argument, _) in zip(names, speculative, strict=True):
            seen[name] += 1
            unique = f"{name}-{seen[name]}" if names.count(name) > 1 else name
            made[unique] = cls(_with(parameters, (*plain, argument)))
        return made

    def engine_arguments(self, rows: int) -> list[str]:
        """Words of vLLM's command line that make the arm, for `rows` requests at a time."""
        return []

    def environment(self) -> dict[str, str]:
        """Variables of vLLM's process that make the arm."""
        return {}

    def report(self) -> dict[str, Any]:
        """The settings for the records; gamma only where the arm speculates."""
        python = self.parameters.vllm_python
        return {
            "vllm_arg": list(self.parameters.vllm_arg),
            "vllm_python": None if python is None else str(python),
            **({"gamma": self.gamma} if self.gamma else {}),
        }


def _with(parameters: VllmParameters, arguments: tuple[str, ...]) -> VllmParameters:
    return parameters.model_copy(update={"vllm_arg": arguments})


def check_argument(argument: str) -> tuple[str, str]:
    """Key and value of an argument that the run does not set itself.

    Raises
    ------
    UsageError
        It does, or the argument is no KEY=VALUE.
    """
    key, value = split_argument(argument)
    # vLLM's parser may take a beginning for the whole name
    reserved = next((name for name in _RESERVED if name.startswith(key)), None)
    if reserved is not None:
        raise UsageError(f"--vllm-arg {key}: this is set by {_RESERVED[reserved]}")
    return key, value


def split_argument(argument: str) -> tuple[str, str]:
    """Key and value of a KEY=VALUE, the key with underscores.

    Raises
    ------
    UsageError
        It is none.
    """
    key, _, value = argument.partition("=")
    if not _KEY.fullmatch(key.strip()):
        raise UsageError(
            f"--vllm-arg {shown(argument)}: expected KEY=VALUE with an engine argument of vLLM, "
            "such as max_num_batched_tokens=8192"
        )
    return key.strip().replace("-", "_"), value


def _speculation(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--vllm-arg {SPECULATIVE}={shown(text)}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"--vllm-arg {SPECULATIVE}={shown(text)}: expected a JSON object")
    return found


def _label(speculation: dict[str, Any]) -> str:
    name = speculation.get("method") or Path(str(speculation.get("model") or "spec")).name
    return re.sub(r"[^\w.-]+", "-", str(name)[:_LONGEST_LABEL])
