"""What a tuning may choose: the settings of one method, as two grids."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

from specbench.config import RunConfig, TuneConfig
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import EngineMethod
from specbench.results.cells import AUTOREGRESSIVE


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

    def show(self, length: str, budget: str) -> str:
        """Under the names of its two numbers."""
        parts = []
        if self.gamma is not None:
            parts.append(f"{length} {self.gamma}")
        if self.ratio is not None and self.gamma != 0:
            parts.append(f"{budget} {self.ratio:g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.show("gamma", "ratio")


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
    length : str
        Name of the setting that `gammas` are values of.
    """

    method: type[EngineMethod]
    budget: str | None
    ratios: tuple[float, ...]
    gammas: tuple[int, ...]
    probe_gamma: int | None
    start: Setting
    sweep_ratios: bool = False
    sweep_gammas: bool = False
    length: str = "gamma"

    def options(self, setting: Setting) -> dict[str, Any]:
        """The setting as options of a run; without drafts the method may be another."""
        if setting.gamma == 0 and self.length != "gamma":
            return {"method": (AUTOREGRESSIVE,)}
        tunable = self.method.tunable
        if tunable.options is not None and setting.gamma is not None:
            return tunable.options(setting.ratio, setting.gamma)
        chosen: dict[str, Any] = {}
        if setting.gamma is not None:
            chosen[self.length] = setting.gamma
        if self.budget and setting.ratio is not None:
            chosen[self.budget] = setting.ratio
        return chosen

    def build(self, setting: Setting, config: RunConfig) -> EngineMethod:
        """The method at `setting`, its other settings from `config`."""
        options = self.options(setting)
        if "method" in options:
            return Autoregressive(Autoregressive.parameters_type())
        return self.method.from_config(config.model_copy(update=options))

    def show(self, setting: Setting) -> str:
        """A setting for people."""
        budget = "ratio" if self.budget in (None, "kept_ratio") else str(self.budget)
        return setting.show(self.length, budget)

    @property
    def grid(self) -> list[Setting]:
        """Every setting, one of those that are the same to measure."""
        found: dict[tuple[float | None, int | None], Setting] = {}
        for gamma in self.gammas or (None,):
            for ratio in self.ratios or (None,):
                setting = Setting(ratio, gamma)
                found.setdefault(setting.key, setting)
        return list(found.values())

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
            "length": self.length,
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
    if config.schedule is not None:
        raise UsageError("--schedule is an option of run: tune is what makes a schedule")
    if config.tuned:
        raise UsageError("--tuned is an option of run: --output names the folder of a tuning")
    if len(names) != 1 or names[0] == "all":
        raise UsageError(f"tune takes one --method at a time, not {', '.join(names)}")
    if "vllm" in config.host:
        raise UsageError(
            "tune measures in specbench's engine: leave out --host; what it finds is what the "
            "plug-in takes (docs/vllm.md)"
        )
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
    grids = {"gammas": tunable.gammas, "ratios": tunable.ratios}
    chosen = {str(tunable.budget): "--ratios limits"} if tunable.ratios else {}
    chosen |= {tunable.length: "--gammas limits"} if tunable.gammas else {}
    chosen |= dict.fromkeys(tunable.derived, "--gammas and --ratios limit")
    for option in config.method_settings():
        shown = f"--{option.replace('_', '-')}"
        if option in chosen:
            raise UsageError(
                f"{shown} is what tune chooses; {chosen[option]} the values that it may take"
            )
        if option not in method.parameters_type.model_fields:
            raise UsageError(f"{shown} is no setting of {names[0]}")
    for name, values in grids.items():
        if not values and getattr(config, name) is not None:
            raise UsageError(f"{names[0]} has no {name} to choose from: leave out --{name}")
    made = method.from_config(config)
    gammas = tuple(sorted({0, *(config.gammas or tunable.gammas)})) if tunable.gammas else ()
    if gammas == (0,):
        raise UsageError("--gammas needs a value above 0: 0 is always a candidate")
    space = Space(
        method=method,
        budget=tunable.budget,
        ratios=tuple(sorted(set(config.ratios or tunable.ratios))),
        gammas=gammas,
        probe_gamma=_nearest(gammas, tunable.probe_gamma),
        start=Setting(_own(made, tunable.budget), _own(made, tunable.length)),
        sweep_ratios=config.ratios is not None,
        sweep_gammas=config.gammas is not None,
        length=tunable.length,
    )
    for ratio in config.ratios or ():
        try:
            space.build(Setting(ratio, space.largest.gamma), config)
        except UsageError as error:
            raise UsageError(f"--ratios {ratio:g}: {error}") from error
    return space


def _own(method: EngineMethod, name: str | None) -> Any:
    """The method's own value of a setting, or of what it makes of others; None without it."""
    return getattr(method.parameters, name or "", None) or getattr(method, name or "", None)


def without_doubles(space: Space, config: RunConfig, length: int) -> tuple[Space, str | None]:
    """Drop ratios that read as many entries of a prompt of `length` tokens as a smaller one.

    Returns
    -------
    space : Space
    note : str or None
        What was dropped.
    """
    if space.budget not in space.method.parameters_type.model_fields:
        return space, None
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
