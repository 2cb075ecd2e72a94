"""The three steps: what each still has to measure, and what it chooses.

Everything here is a function of the trials so far, so that a study that was interrupted, or that
several processes share, goes on where it stands.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.tune.objective import Best, choose
from specbench.tune.plateau import Histograms, on_plateau
from specbench.tune.search import Value, ascend, climb
from specbench.tune.space import Setting, Space, nearest_index

CLIMB_MARGIN = 0.01
STEPS = (1, 2, 3)
"""Those that choose; a fourth may check them."""
ROUNDS = 2
"""How often step 3 looks along both grids anew after its best point moved."""


@dataclass(frozen=True)
class Result:
    """What became of a trial.

    Attributes
    ----------
    setting : Setting
    merit : float or None
        Large is good; None where the trial failed.
    noise : float or None
        Standard error as a share of `merit`.
    histograms : tuple of tuple of int
        Tokens committed per step, by prompt.
    """

    setting: Setting
    merit: float | None
    noise: float | None = None
    histograms: tuple[tuple[int, ...], ...] = ()


class Step(ABC):
    """One step of the tuning over the trials that it may look at.

    Attributes
    ----------
    number : int
    name : str
        Of its Optuna study.
    title : str
        For progress lines.
    most : int
        Settings that it may measure, about: for progress bars.
    """

    number: int
    name: str
    title: str

    def __init__(self, space: Space) -> None:
        self.space = space

    @property
    def most(self) -> int:
        """A ratio after the other."""
        return len(self.space.ratios)

    @abstractmethod
    def wanted(self, results: Sequence[Result]) -> list[Setting]:
        """Settings worth measuring now, the best first; empty where the step is done."""

    @abstractmethod
    def chosen(self, results: Sequence[Result]) -> Setting | None:
        """The step's choice; None where nothing could be measured."""


class PlateauStep(Step):
    """Step 1: the ratio at which acceptance stops growing, at a fixed gamma."""

    number, name = 1, "1-ratio-acceptance"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Names the fixed gamma."""
        space = self.space
        return f"{space.budget} for acceptance length at {space.length} {space.probe_gamma}"

    def wanted(self, results: Sequence[Result]) -> list[Setting]:
        """Upwards to the plateau, or all of a grid that the user named."""
        measured, failed = self._split(results)
        if self.space.sweep_ratios:
            left = [r for r in self.space.ratios if r not in measured and r not in failed]
        else:
            left = ascend(self.space.ratios, measured, failed)
        return [Setting(ratio, self.space.probe_gamma) for ratio in left]

    def chosen(self, results: Sequence[Result]) -> Setting | None:
        """The smallest ratio on the plateau."""
        level = on_plateau(self._split(results)[0])
        return Setting(level[0], self.space.probe_gamma) if level else None

    def _split(self, results: Sequence[Result]) -> tuple[dict[float, Histograms], list[float]]:
        measured: dict[float, Histograms] = {}
        failed = []
        for result in results:
            ratio = result.setting.ratio
            if ratio is None:
                continue
            if result.merit is None:
                failed.append(ratio)
            else:
                measured[ratio] = result.histograms
        return measured, failed


class GammaStep(Step):
    """Step 2: gamma for the objective at step 1's ratio; gamma 0 goes first."""

    number, name = 2, "2-gamma"

    def __init__(self, space: Space, ratio: float | None) -> None:
        super().__init__(space)
        self.ratio = ratio
        self.title = (
            space.length if ratio is None else f"{space.length} at {space.budget} {ratio:g}"
        )

    @property
    def most(self) -> int:
        """A gamma after the other."""
        return len(self.space.gammas)

    def wanted(self, results: Sequence[Result]) -> list[Setting]:
        """No drafts, then around the method's own gamma."""
        nothing = Setting(self.ratio, 0)
        if nothing.key not in {result.setting.key for result in results}:
            return [nothing]
        return along_gamma(
            self.space, self.ratio, self.space.start.gamma, results, self.space.sweep_gammas
        )

    def chosen(self, results: Sequence[Result]) -> Setting | None:
        """The best, ties to the smaller."""
        return choose(_scored(results))


class RefineStep(Step):
    """Step 3: the ratio again, for the objective; where it moves, gamma beside it."""

    number, name = 3, "3-ratio"

    def __init__(self, space: Space, start: Setting) -> None:
        super().__init__(space)
        self.start = start
        self.title = f"{space.budget} around {space.show(start)}"

    def wanted(self, results: Sequence[Result]) -> list[Setting]:
        """Along the ratios, and where that moved the best point along gamma, and so on."""
        here, sweep = self.start, self.space.sweep_ratios
        for _ in range(ROUNDS):
            left = along_ratio(self.space, here.gamma, here.ratio, results, sweep)
            if left:
                return left
            moved = self._best(results, lambda s: s.gamma == here.gamma)  # noqa: B023
            if moved is None or moved == here:
                return []
            here, sweep = moved, False
            if not self.space.gammas:
                return []
            left = along_gamma(self.space, here.ratio, here.gamma, results, False)
            if left:
                return left
            moved = self._best(results, lambda s: s.ratio == here.ratio and s.gamma != 0)  # noqa: B023
            if moved is None or moved == here:
                return []
            here = moved
        return []

    def chosen(self, results: Sequence[Result]) -> Setting | None:
        """The best of steps 2 and 3, ties to the smaller."""
        return choose(_scored(results))

    def _best(self, results: Sequence[Result], keep: Callable[[Setting], bool]) -> Setting | None:
        return choose(_scored(result for result in results if keep(result.setting)))


class GridStep(Step):
    """Step 4, a check: what the three steps left out of the grids, for the objective."""

    number, name = 4, "4-grid"
    title = "the rest of the grids, as a check"

    @property
    def most(self) -> int:
        """All."""
        return len(self.space.grid)

    def wanted(self, results: Sequence[Result]) -> list[Setting]:
        """Every setting that has no result."""
        measured = {result.setting.key for result in results}
        return [setting for setting in self.space.grid if setting.key not in measured]

    def chosen(self, results: Sequence[Result]) -> Setting | None:
        """The best value; ties are for choosing, not for checking a choice."""
        best = best_so_far(results)
        return None if best is None else best.setting


def along_gamma(
    space: Space, ratio: float | None, start: int | None, results: Sequence[Result], sweep: bool
) -> list[Setting]:
    """Gammas above 0 to measure at `ratio`."""
    grid = tuple(gamma for gamma in space.gammas if gamma > 0)
    values = {
        grid.index(r.setting.gamma): r.merit
        for r in results
        if r.setting.ratio == ratio and r.setting.gamma in grid
    }
    return [Setting(ratio, grid[at]) for at in _next(grid, values, start, sweep)]


def along_ratio(
    space: Space, gamma: int | None, start: float | None, results: Sequence[Result], sweep: bool
) -> list[Setting]:
    """Ratios to measure at `gamma`."""
    grid = space.ratios
    values = {
        grid.index(r.setting.ratio): r.merit
        for r in results
        if r.setting.gamma == gamma and r.setting.ratio in grid
    }
    return [Setting(grid[at], gamma) for at in _next(grid, values, start, sweep)]


def best_so_far(results: Iterable[Result]) -> Best | None:
    """What the next candidate is measured against: the highest merit, no ties considered."""
    scored = _scored(results)
    if not scored:
        return None
    top = max(scored, key=lambda setting: scored[setting][0])
    return Best(top, scored[top][0])


def best_with_drafts(results: Iterable[Result]) -> Setting | None:
    """The best setting that drafts, ties to the smaller: where step 3 begins."""
    return choose(_scored(result for result in results if result.setting.gamma != 0))


def _next(grid: Any, values: dict[int, Value], start: float | None, sweep: bool) -> list[int]:
    if sweep:
        return [at for at in range(len(grid)) if at not in values]
    return climb(len(grid), values, nearest_index(grid, start or 0), CLIMB_MARGIN)


def _scored(results: Iterable[Result]) -> dict[Setting, tuple[float, float | None]]:
    return {r.setting: (r.merit, r.noise) for r in results if r.merit is not None}
