"""The final figure: the choice beside default settings on prompts that tuning never saw."""

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
from specbench.results.throughput import DecodeThroughput, SpeedUp
from specbench.tune.space import Setting, Space

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT, GRID, TUNED = "default", "grid", "tuned"


def final_folder(folder: Path, exhaustive: bool) -> Path:
    """Where the final run of a tuning in `folder` is: with the grids' best it is another run."""
    return folder / ("final-grid" if exhaustive else "final")


@dataclass(frozen=True)
class Comparison:
    """The ratio of two arms' decode throughputs, with its 95 % interval; None is unknown."""

    arm: str
    over: str
    value: float | None
    low: float | None
    high: float | None

    @property
    def same(self) -> bool:
        """Whether both are one setting, so that the ratio is 1 without a measurement."""
        return self.value == self.low == self.high == 1.0


def final_arms(
    config: RunConfig, space: Space, chosen: Setting, grid_best: Setting | None = None
) -> list[Arm]:
    """The baseline, the method's own settings, the grids' best, the tuned ones: each once."""
    baseline = METHODS.get(AUTOREGRESSIVE).from_config(config)
    arms = [Arm(AUTOREGRESSIVE, baseline)] if config.baseline else []
    for kind, setting in _settings(space, chosen, grid_best).items():
        same = kind != TUNED and setting.key == chosen.key
        if same or (kind == GRID and setting.key == space.start.key):
            continue
        own = space.method.from_config(config)
        method = own if kind == DEFAULT else space.build(setting, config)
        arms.append(Arm(f"{space.method.name}-{kind}", method))
    return arms


def _settings(space: Space, chosen: Setting, grid_best: Setting | None) -> dict[str, Setting]:
    checked = {} if grid_best is None else {GRID: grid_best}
    return {DEFAULT: space.start, **checked, TUNED: chosen}


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
    """Run the arms, interleaved, on the held-out prompts into `folder`.

    Returns
    -------
    int
        The exit status of the run.
    """
    config = plan.config.model_copy(
        update={"output": folder, "resume": (folder / RUN).is_file(), "num_prompts": None}
    )
    final = replace(plan, config=config, arms=arms, workloads=[held_out])
    return run_plan(final, host, folder, console=console, argv=argv, began=time.perf_counter())


def compare(
    folder: Path, space: Space, chosen: Setting, grid_best: Setting | None = None
) -> list[Comparison]:
    """What the final run in `folder` says of the choice: over grids' best, default, and baseline.

    Where two of them are one setting, their ratio is 1 and was not measured.
    """
    (group,) = build_groups(read_folder(folder))
    cells = {cell.arm.name: cell for cell in group.cells}
    settings = _settings(space, chosen, grid_best)
    name = space.method.name
    pairs = [(TUNED, kind) for kind in (GRID, DEFAULT) if kind in settings]
    found = []
    for ours, theirs in pairs:
        arm, over = f"{name}-{ours}", f"{name}-{theirs}"
        if settings[ours].key == settings[theirs].key:
            found.append(Comparison(arm, over, 1.0, 1.0, 1.0))
        else:
            default = f"{name}-{DEFAULT}"  # which the grids' best may be
            found.append(_ratio(group, cells[arm], cells.get(over, cells.get(default)), over))
    for kind in (TUNED, DEFAULT):
        arm = f"{name}-{kind}"
        if arm in cells and AUTOREGRESSIVE in cells:
            found.append(_ratio(group, cells[arm], cells[AUTOREGRESSIVE], AUTOREGRESSIVE))
    return found


def throughput(folder: Path, space: Space) -> float | None:
    """Decode tokens/s of the tuned arm in the final run; None is unknown."""
    (group,) = build_groups(read_folder(folder))
    metric = DecodeThroughput()
    cell = next(c for c in group.cells if c.arm.name == f"{space.method.name}-{TUNED}")
    value: float | None = metric.row(cell, group)[metric.columns[0]]
    return value


def _ratio(group: Group, arm: Cell, over: Cell | None, name: str) -> Comparison:
    metric = SpeedUp("over", lambda group: over)
    figures = metric.row(arm, group)
    value, low, high = (figures[column] for column in metric.columns)
    return Comparison(arm.arm.name, name, value, low, high)
