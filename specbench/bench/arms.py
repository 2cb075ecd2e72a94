"""The arms of a run: methods with their settings, the paired baseline first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.results.cells import AUTOREGRESSIVE
from specbench.results.records import ArmInfo

if TYPE_CHECKING:
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
            parameters=self.method.report(),
            lossless=self.method.lossless,
        )


def build_arms(config: RunConfig) -> list[Arm]:
    """The arms that `config` asks for.

    Raises
    ------
    UsageError
        An unknown method, or a setting that no chosen method has or that is out of range.
    """
    names = METHODS.names() if "all" in config.method else list(config.method)
    if config.baseline and AUTOREGRESSIVE not in names:
        names.insert(0, AUTOREGRESSIVE)
    names.sort(key=lambda name: name != AUTOREGRESSIVE)
    types = [METHODS.get(name) for name in names]
    for name in config.method_settings():
        if not any(name in method.parameters_type.model_fields for method in types):
            raise UsageError(
                f"--{name.replace('_', '-')} is no setting of {', '.join(names)}; leave it out"
            )
    return [Arm(method.name, method.from_config(config)) for method in types]


def check_capabilities(arm: Arm, config: RunConfig) -> None:
    """Refuse an arm that cannot do what the resolved `config` asks."""
    able = arm.method.capabilities
    if config.temperature > 0 and not able.sampling:
        raise UsageError(f"{arm.name} decodes greedily only: use --temperature 0")
    if (config.batch_size or 1) > 1 and not able.batch:
        raise UsageError(f"{arm.name} decodes one request at a time: use --batch-size 1")
    if able.max_context and (config.context_len or 0) > able.max_context:
        raise UsageError(
            f"{arm.name} reaches {able.max_context:,} tokens of context, "
            f"--context-len is {config.context_len:,}"
        )
