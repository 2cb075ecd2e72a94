"""A run by a schedule: its configuration, and each dataset's arms with their load's settings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from specbench.bench.arms import Arm
from specbench.bench.schedule import Entry, Schedule, plain, read_schedule
from specbench.bench.tuned import without_method
from specbench.config import RunConfig
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.results.cells import AUTOREGRESSIVE

if TYPE_CHECKING:
    from specbench.bench.shards import Cell
    from specbench.bench.workload import Workload


def settled(config: RunConfig) -> RunConfig:
    """`config` with what its schedule or its tunings say for all loads; see `settle`."""
    if config.schedule is None:
        return without_method(config)
    return settle(read_schedule(config.schedule), config)


def settle(schedule: Schedule, config: RunConfig) -> RunConfig:
    """`config` with the schedule's method and settings.

    Raises
    ------
    UsageError
        An option says what the schedule chooses, or otherwise than the schedule.
    """
    updates: dict[str, Any] = {}
    if "method" not in config.model_fields_set:
        updates["method"] = (schedule.method,)
    elif schedule.method not in config.method and "all" not in config.method:
        raise UsageError(
            f"--schedule is of {schedule.method}, which is not among {', '.join(config.method)}"
        )
    given = config.method_settings()
    for name in dict.fromkeys(name for entry in schedule.loads for name in entry.options):
        if name in given:
            raise UsageError(f"--{name.replace('_', '-')} is what --schedule chooses")
    for name, value in schedule.settings.items():
        if name in given and plain(given[name]) != plain(value):
            raise UsageError(
                f"--{name.replace('_', '-')} {given[name]} is not what the schedule was tuned "
                f"with: {value}"
            )
        sharing = _others_with(name, schedule, config) if name not in given else []
        if sharing:
            option = f"--{name.replace('_', '-')} {value}"
            raise UsageError(
                f"the schedule has {option}, a setting of {', '.join(sharing)} too: give {option} "
                "for both, or run them apart"
            )
        updates[name] = value
    fields = config.model_dump(exclude_unset=True)
    try:
        return type(config)(**(fields | updates))
    except ValidationError as error:
        raise UsageError(f"--schedule: {error.errors()[0]['msg']}") from error


def _others_with(setting: str, schedule: Schedule, config: RunConfig) -> list[str]:
    """The run's other methods that have a setting."""
    names = METHODS.names() if "all" in config.method else config.method
    return (
        [
            name
            for name in names
            if name != schedule.method
            and any(
                setting in k.parameters_type.model_fields
                for k in METHODS.get(name).variants().values()
            )
        ]
        if "method" in config.model_fields_set
        else []
    )


def resolve(
    schedule: Schedule,
    arms: Sequence[Arm],
    workloads: "Sequence[Workload]",
    batch: int,
    config: RunConfig,
) -> "tuple[list[Arm], list[Cell] | None, list[str]]":
    """The arms with the settings of each dataset's load.

    Parameters
    ----------
    schedule : Schedule
    arms : sequence of Arm
        Those of the run, the schedule's method with any settings.
    workloads : sequence of Workload
    batch : int
    config : RunConfig

    Returns
    -------
    arms : list of Arm
    cells : list of (str, str), optional
        Which arm runs on which dataset, where settings differ between datasets.
    choices : list of str
        What was picked, and why.
    """
    picked, choices = {}, []
    for workload in workloads:
        rows = min(batch, len(workload.requests))
        lengths = [len(request.token_ids) for request in workload.requests]
        context = sum(lengths) / len(lengths)
        entry = picked[workload.info.name] = schedule.nearest(rows, context)
        outside = schedule.outside(rows, context)
        choices.append(
            f"{workload.info.name}: {schedule.method} with {entry.label}, the schedule's nearest "
            f"load (batch {entry.batch_size}, {entry.context:,} tokens) to batch {rows}, "
            f"{context:,.0f} tokens" + (f"; {outside}" if outside else "")
        )
    labels = dict.fromkeys(entry.label for entry in picked.values())
    found: list[Arm] = []
    cells: list[Cell] = []
    for arm in arms:
        if arm.method.name != schedule.method:
            found.append(arm)
            cells += [(dataset, arm.name) for dataset in picked]
            continue
        for label in labels:
            name = arm.name if len(labels) == 1 else f"{arm.name} {label}"
            on = [dataset for dataset, entry in picked.items() if entry.label == label]
            found.append(_arm(arm, picked[on[0]], name, config))
            cells += [(dataset, name) for dataset in on]
    return found, None if len(labels) == 1 else cells, choices


def _arm(arm: Arm, entry: Entry, name: str, config: RunConfig) -> Arm:
    if "method" in entry.options:
        return Arm(name, METHODS.get(AUTOREGRESSIVE).from_config(config))
    return Arm(name, type(arm.method).from_config(config.model_copy(update=entry.options)))
