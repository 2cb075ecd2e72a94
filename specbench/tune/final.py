"""The final figure: default settings against tuned ones on prompts that tuning never saw."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.arms import Arm
from specbench.bench.backends import EngineHost
from specbench.bench.plan import Plan
from specbench.bench.run import run_plan
from specbench.bench.workload import Workload
from specbench.config import RunConfig
from specbench.methods import METHODS
from specbench.results.cells import AUTOREGRESSIVE, Cell, Group, build_groups
from specbench.results.reading import RUN, read_folder
from specbench.results.throughput import SpeedUp
from specbench.tune.space import Setting, Space

if TYPE_CHECKING:
    from rich.console import Console

FINAL = "final"


@dataclass(frozen=True)
class Comparison:
    """The ratio of two arms' decode throughputs, with its 95 % interval; None is unknown."""

    arm: str
    over: str
    value: float | None
    low: float | None
    high: float | None


def final_arms(config: RunConfig, space: Space, chosen: Setting) -> list[Arm]:
    """The baseline, the method's own settings, and the tuned ones where they differ."""
    baseline = METHODS.get(AUTOREGRESSIVE).from_config(config)
    arms = [Arm(AUTOREGRESSIVE, baseline)] if config.baseline else []
    name = space.method.name
    if chosen.key != space.start.key:
        arms.append(Arm(f"{name}-default", space.method.from_config(config)))
    return [*arms, Arm(f"{name}-tuned", space.build(chosen, config))]


def run_final(
    plan: Plan,
    host: EngineHost,
    held_out: Workload,
    arms: list[Arm],
    folder: Path,
    *,
    console: "Console",
    argv: Sequence[str],
) -> int:
    """Run the arms, interleaved, on the held-out prompts into ``<folder>/final``.

    Returns
    -------
    int
        The exit status of the run.
    """
    target = folder / FINAL
    config = plan.config.model_copy(
        update={"output": target, "resume": (target / RUN).is_file(), "num_prompts": None}
    )
    final = replace(plan, config=config, arms=arms, workloads=[held_out])
    return run_plan(final, host, target, console=console, argv=argv, began=time.perf_counter())


def compare(folder: Path) -> list[Comparison]:
    """What ``<folder>/final`` says of the tuned arm: over the default, over the baseline."""
    (group,) = build_groups(read_folder(folder / FINAL))
    tuned = group.cells[-1]
    pairs = [(tuned, other) for other in reversed(group.cells[:-1])]
    if len(group.cells) > 2:
        pairs.append((group.cells[-2], group.cells[0]))
    return [_ratio(group, arm, over) for arm, over in pairs]


def _ratio(group: Group, arm: Cell, over: Cell) -> Comparison:
    metric = SpeedUp("over", lambda group: over)
    figures = metric.row(arm, group)
    value, low, high = (figures[name] for name in metric.columns)
    return Comparison(arm.arm.name, over.arm.name, value, low, high)
