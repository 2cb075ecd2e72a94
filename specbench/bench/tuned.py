"""Arms with the settings that tunings found."""

from specbench.bench.arms import Arm
from specbench.config import METHOD_FIELDS, RunConfig
from specbench.config_build import build_config
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE

# what a tuning leaves of its choice
TUNED = "tuned.yaml"


def without_method(config: RunConfig) -> RunConfig:
    """`config` without the default method, where tunings name others and it was not asked for."""
    if config.tuned and "method" not in config.model_fields_set:
        return config.model_copy(update={"method": ()})
    return config


def tuned_arms(config: RunConfig, choices: list[str]) -> list[Arm]:
    """An arm of each tuning that `config` names, with its method's settings as they were found.

    Parameters
    ----------
    config : RunConfig
    choices : list of str
        Gets a line for each: its settings, and what it was tuned with otherwise than `config`.

    Raises
    ------
    UsageError
        No tuning is there; it is of several arms or of none that drafts in the engine; the same
        arm twice; or a schedule too.
    """
    if config.tuned and config.schedule:
        raise UsageError("--tuned and --schedule both choose settings: give one of them")
    found: dict[str, Arm] = {}
    for place in config.tuned:
        file = place / TUNED if place.is_dir() else place
        if place.is_dir() and not file.is_file():
            raise UsageError(f"--tuned {place}: no tuning is there: it has no {TUNED}")
        tuned = build_config({}, file)
        (name, *others) = tuned.method
        if others or name == "all":
            raise UsageError(f"--tuned {file}: the settings of one method, not of several")
        if name == AUTOREGRESSIVE:
            choices.append(f"{file}: no drafts is its choice; the arm {AUTOREGRESSIVE} is that")
            continue
        if not issubclass(METHODS.get(name), EngineMethod):
            raise UsageError(f"--tuned {file}: {name} is not tuned; give --method {name}")
        settings = {field: getattr(tuned, field) for field in METHOD_FIELDS}
        made = METHODS.get(name).arms(config.model_copy(update=settings))
        if len(made) > 1:
            raise UsageError(f"--tuned {file}: one arm, not {', '.join(made)}")
        ((arm, method),) = made.items()
        arm += "-tuned"
        if arm in found:
            arm += f" ({file.resolve().parent.name})"
        if arm in found:
            raise UsageError(f"--tuned {file}: {arm} is an arm already")
        found[arm] = Arm(arm, method)
        choices.append(f"{arm}: {_said(tuned)}, of {file}{_elsewhere(tuned, config)}")
    return list(found.values())


def _said(tuned: RunConfig) -> str:
    given = tuned.method_settings().items()
    return ", ".join(f"{name.replace('_', '-')} {_text(value)}" for name, value in given)


def _elsewhere(tuned: RunConfig, config: RunConfig) -> str:
    """What the tuning was for, where the run is something else."""
    differing = [
        f"{name.replace('_', '-')} {_text(theirs)}"
        for name in ("model", "batch_size", "context_len")
        if (theirs := getattr(tuned, name)) is not None
        and (ours := getattr(config, name)) is not None
        and theirs != ours
    ]
    return f"; tuned for {', '.join(differing)}" if differing else ""


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
