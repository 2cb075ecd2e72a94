"""The arms of a run: methods with their settings, the paired baseline first."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from specbench.bench.redact import redact
from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE, VLLM
from specbench.results.records import ArmInfo

if TYPE_CHECKING:
    import torch

    from specbench.methods.base import Method


@dataclass(frozen=True)
class Arm:
    """A method of the plan under the name that records carry."""

    name: str
    method: "Method"

    @property
    def info(self) -> ArmInfo:
        """What `run.json` says of it."""
        return ArmInfo(
            name=self.name,
            method=self.method.name,
            parameters=redact(self.method.report()),
            lossless=self.method.lossless,
        )


def build_arms(config: RunConfig, left_out: list[str] | None = None) -> list[Arm]:
    """The arms that `config` asks for.

    Parameters
    ----------
    config : RunConfig
    left_out : list of str, optional
        Gets a line for each method that 'all' leaves out, since it cannot be set up.

    Raises
    ------
    UsageError
        An unknown method, or a setting that no chosen method has or that is out of range.
    """
    names = list(config.method)
    if "all" in names:
        names = [
            name
            for name in METHODS.names()
            if _in_all(name, config, left_out if left_out is not None else [])
        ]
    if config.baseline and AUTOREGRESSIVE not in names:
        names.insert(0, AUTOREGRESSIVE)
    names.sort(key=lambda name: name != AUTOREGRESSIVE)
    arms = [
        Arm(name, made)
        for method in map(METHODS.get, _in_engine(names, config))
        for name, made in method.arms(config).items()
    ]
    if "vllm" in config.host:
        from specbench.methods.vllm.hosted import hosted_arms

        arms += [Arm(name, made) for name, made in hosted_arms(config, list(config.method)).items()]
    for setting in config.method_settings():
        if not any(setting in arm.method.parameters_type.model_fields for arm in arms):
            shown = ", ".join(arm.name for arm in arms)
            others = " or ".join(_variants_with(setting, names))
            raise UsageError(
                f"--{setting.replace('_', '-')} is no setting of {shown}; leave it out"
                + (f", or choose {others}" if others else "")
            )
    return arms


def _in_engine(names: list[str], config: RunConfig) -> list[str]:
    """Of the methods `names`, those that have arms outside vLLM's plug-in."""
    if "engine" in config.host:
        return names
    return [name for name in names if name in (AUTOREGRESSIVE, VLLM)]


def _in_all(name: str, config: RunConfig, left_out: list[str]) -> bool:
    """Whether 'all' includes a method: one that can be set up with the settings that were given.

    vLLM can where it is installed, or its interpreter is named.
    """
    reason = None
    if name == VLLM and not (config.vllm_python or config.vllm_arg or find_spec("vllm")):
        reason = "not installed here; --vllm-python names another interpreter"
    elif not METHODS.get(name).in_all(config):
        reason = f"no draft for {config.model}; --draft-weights names one"
    else:
        try:
            METHODS.get(name).arms(config)
        except UsageError as error:
            reason = str(error)
    if reason is not None:
        left_out.append(f"{name}: left out of 'all': {reason}")
    return reason is None


def _variants_with(setting: str, names: list[str]) -> list[str]:
    """Variants of the methods `names` that have `setting`."""
    return [
        variant
        for method in map(METHODS.get, names)
        for variant, kind in method.variants().items()
        if setting in kind.parameters_type.model_fields
    ]


def check_capabilities(arm: Arm, config: RunConfig) -> None:
    """Refuse an arm that cannot do what the resolved `config` asks."""
    able = arm.method.capabilities
    if config.dtype is not None and config.dtype not in able.dtypes:
        raise UsageError(f"{arm.name} has no --dtype {config.dtype}: use {', '.join(able.dtypes)}")
    if config.temperature > 0 and not able.sampling:
        raise UsageError(f"{arm.name} decodes greedily only: use --temperature 0")
    if (config.batch_size or 1) > 1 and not able.batch:
        raise UsageError(f"{arm.name} decodes one request at a time: use --batch-size 1")
    if able.max_context and (config.context_len or 0) > able.max_context:
        raise UsageError(
            f"{arm.name} reaches {able.max_context:,} tokens of context, "
            f"--context-len is {config.context_len:,}"
        )


def check_graph_modes(arms: list[Arm], config: RunConfig, dtype: "torch.dtype") -> None:
    """Refuse to compare arms of which some run as a CUDA graph and some cannot.

    Raises
    ------
    UsageError
        Names those that cannot, unless `allow_eager` is set.
    """
    from specbench.engine.compute import uses_triton

    triton = uses_triton(config.attention_backend, str(config.device), dtype)
    if config.device != "cuda" or not config.graphs or not triton or config.allow_eager:
        return
    able = {a.name: a.method.capturable for a in arms if isinstance(a.method, EngineMethod)}
    eager = [name for name, captured in able.items() if not captured]
    if eager and len(eager) < len(able):
        raise UsageError(
            f"{', '.join(eager)} cannot run as a CUDA graph, which the other arms do: their times "
            "would not compare. Pass --no-graphs to run all without, or --allow-eager"
        )
