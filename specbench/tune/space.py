"""What a tuning may choose: the settings of one method, as two grids."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from specbench.config import RunConfig, TuneConfig
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.methods.base import EngineMethod


@dataclass(frozen=True)
class Setting:
    """A point of the space; None where the method has no such setting.

    Without drafts no ratio matters, so settings of gamma 0 share one `key`.
    """

    ratio: float | None
    gamma: int | None

    @property
    def key(self) -> tuple[float | None, int | None]:
        """What makes two settings the same to measure."""
        return (None if self.gamma == 0 else self.ratio), self.gamma

    @property
    def size(self) -> tuple[int, float]:
        """Orders settings that are as good as each other: fewer drafts first, then less KV."""
        return self.gamma or 0, self.ratio or 0.0

    def __str__(self) -> str:
        parts = []
        if self.gamma is not None:
            parts.append(f"gamma {self.gamma}")
        if self.ratio is not None and self.gamma != 0:
            parts.append(f"ratio {self.ratio:g}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Space:
    """The grids of a method.

    Attributes
    ----------
    method : type of EngineMethod
    budget : str or None
        Name of the setting that `ratios` are values of.
    ratios : tuple of float
        Ascending; empty for a method without a budget.
    gammas : tuple of int
        Ascending, 0 first; empty for a method whose gamma is fixed.
    probe_gamma : int or None
        Gamma of step 1.
    start : Setting
        The method's own settings, where a search begins.
    sweep_ratios, sweep_gammas : bool
        The user named the grid: all of it is measured, not searched.
    """

    method: type[EngineMethod]
    budget: str | None
    ratios: tuple[float, ...]
    gammas: tuple[int, ...]
    probe_gamma: int | None
    start: Setting
    sweep_ratios: bool = False
    sweep_gammas: bool = False

    def options(self, setting: Setting) -> dict[str, Any]:
        """The setting as options of a run."""
        chosen: dict[str, Any] = {}
        if setting.gamma is not None:
            chosen["gamma"] = setting.gamma
        if self.budget and setting.ratio is not None:
            chosen[self.budget] = setting.ratio
        return chosen

    def build(self, setting: Setting, config: RunConfig) -> EngineMethod:
        """The method at `setting`, its other settings from `config`."""
        return self.method.from_config(config.model_copy(update=self.options(setting)))

    @property
    def largest(self) -> Setting:
        """What needs the most memory."""
        return Setting(
            self.ratios[-1] if self.ratios else None, self.gammas[-1] if self.gammas else None
        )

    def describe(self) -> dict[str, Any]:
        """As JSON, to tell studies apart."""
        return {
            "method": self.method.name,
            "budget": self.budget,
            "ratios": list(self.ratios),
            "gammas": list(self.gammas),
            "probe_gamma": self.probe_gamma,
            "sweep": [self.sweep_ratios, self.sweep_gammas],
        }


def build_space(config: TuneConfig) -> Space:
    """The space of the one method that `config` names.

    Raises
    ------
    UsageError
        Several methods or variants, one with nothing to tune, or an option that the tuning chooses
        itself.
    """
    names = config.method
    if len(names) != 1 or names[0] == "all":
        raise UsageError(f"tune takes one --method at a time, not {', '.join(names)}")
    method = METHODS.get(names[0])
    if issubclass(method, EngineMethod):
        arms = method.arms(config)
        if len(arms) > 1:
            raise UsageError(f"tune takes one arm at a time, not {', '.join(arms)}")
        # a method with variants stands for them, and one of them is tuned
        method = type(next(iter(arms.values())))
    tunable = method.tunable
    if not issubclass(method, EngineMethod) or not (tunable.ratios or tunable.gammas):
        kinds = METHODS.get(names[0]).variants().items()
        others = [name for name, kind in kinds if kind.tunable.ratios or kind.tunable.gammas]
        raise UsageError(
            f"{names[0]} has nothing to tune: it has neither a KV budget nor a gamma"
            + (f"; {' or '.join(others)} has" if others else "")
        )
    for option, values, instead in (
        ("gamma", tunable.gammas, "gammas"),
        (tunable.budget, tunable.ratios, "ratios"),
    ):
        if values and option and getattr(config, option, None) is not None:
            raise UsageError(
                f"--{option.replace('_', '-')} is what tune chooses; "
                f"--{instead} limits the values that it may take"
            )
        if not values and getattr(config, instead) is not None:
            raise UsageError(f"{names[0]} has no {instead} to choose from: leave out --{instead}")
    for option in config.method_settings():
        if option not in method.parameters_type.model_fields:
            raise UsageError(f"--{option.replace('_', '-')} is no setting of {names[0]}")
    defaults = method.from_config(config).parameters.model_dump()
    gammas = tuple(sorted({0, *(config.gammas or tunable.gammas)})) if tunable.gammas else ()
    if gammas == (0,):
        raise UsageError("--gammas needs a value above 0: 0 is always a candidate")
    return Space(
        method=method,
        budget=tunable.budget,
        ratios=tuple(sorted(set(config.ratios or tunable.ratios))),
        gammas=gammas,
        probe_gamma=_nearest(gammas, tunable.probe_gamma),
        start=Setting(defaults.get(tunable.budget or ""), defaults.get("gamma")),
        sweep_ratios=config.ratios is not None,
        sweep_gammas=config.gammas is not None,
    )


def without_doubles(space: Space, config: RunConfig, length: int) -> tuple[Space, str | None]:
    """Drop ratios that read as many entries of a prompt of `length` tokens as a smaller one.

    Returns
    -------
    space : Space
    note : str or None
        What was dropped.
    """
    from dataclasses import replace

    kept: dict[int, float] = {}
    for ratio in space.ratios:
        method = space.build(Setting(ratio, space.probe_gamma), config)
        kept.setdefault(method.entries_read(length), ratio)
    ratios = tuple(kept.values())
    if ratios == space.ratios:
        return space, None
    dropped = ", ".join(f"{r:g}" for r in space.ratios if r not in ratios)
    note = f"ratios {dropped}: left out, drafts would read as many entries as with a smaller one"
    return replace(space, ratios=ratios), note


def nearest_index(grid: tuple[float, ...] | tuple[int, ...], value: float) -> int:
    """Where `grid`, ascending, comes closest to `value`."""
    right = min(bisect_left(grid, value), len(grid) - 1)
    left = max(right - 1, 0)
    return left if abs(grid[left] - value) <= abs(grid[right] - value) else right


def _nearest(gammas: tuple[int, ...], probe: int | None) -> int | None:
    drafting = tuple(gamma for gamma in gammas if gamma > 0)
    if probe is None or not drafting:
        return probe
    return drafting[nearest_index(drafting, probe)]
