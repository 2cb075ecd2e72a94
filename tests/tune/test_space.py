"""The grids that methods declare."""

import pytest

from specbench.config import TuneConfig
from specbench.methods import METHODS
from specbench.methods.base import EngineMethod
from specbench.tune.space import Setting, build_space, without_doubles


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"method": ("vegas",)}, "Vegas"),
        ({"method": ("magicdec",)}, "Stream"),
        ({"method": ("magicdec",), "variant": "snapkv"}, "SnapKV"),
        ({"method": ("magicdec",), "variant": "quest"}, "Quest"),
        ({"method": ("specextend",)}, "SelfDraft"),
    ],
)
def test_methods_with_a_budget_share_one_grid(options: dict, name: str) -> None:
    config = TuneConfig(**options)
    space = build_space(config)
    assert space.method.__name__ == name
    assert space.ratios[0] == 0.01
    assert space.gammas[:3] == (0, 1, 2)
    for ratio in space.ratios:
        method = space.build(Setting(ratio, 6), config)
        assert method.gamma == 6
        # whole pages and chunks, and the fewest that a set may hold
        assert abs(method.entries_read(20_000) - max(ratio * 20_000, 64)) < 32
    assert space.build(Setting(None, 0), config).gamma == 0
    assert [METHODS.get(n).tunable.ratios for n in ("vegas", "magicdec")] == [space.ratios] * 2


def test_ratios_that_read_as_much_are_measured_once() -> None:
    config = TuneConfig(method=("magicdec",), variant="quest")
    space, note = without_doubles(build_space(config), config, 1000)
    # 64 entries are the least: ratios up to 0.05 all read 4 pages, and so does 0.07
    assert space.ratios == (0.01, 0.1, 0.15, 0.2, 0.3, 0.4)
    assert note is not None


@pytest.mark.parametrize(
    ("options", "start", "largest"),
    [
        (
            {"method": ("longspec",), "draft_weights": "dummy"},
            Setting(16, 5),
            {"tree_shape": (4, *[16] * 7)},
        ),
        (
            {"method": ("specextend",), "drafts": "tree"},
            Setting(None, 10),
            {"kept_ratio": 0.4, "depth": 10, "nodes": 50},
        ),
        (
            {"method": ("specextend",), "draft_model": "small"},
            Setting(None, 10),
            {"kept_ratio": 0.4, "depth": 10, "nodes": 50},
        ),
        (
            {"method": ("magicdec",), "draft_model": "small"},
            Setting(None, 4),
            {"kept_ratio": 0.4, "gamma": 16},
        ),
    ],
)
def test_trees_and_small_models_have_two_grids_too(
    options: dict, start: Setting, largest: dict
) -> None:
    config = TuneConfig(**options)
    space = build_space(config)
    assert space.start == start
    assert space.options(space.largest) == largest
    for setting in space.grid:
        assert space.build(setting, config).gamma == setting.gamma
    without = space.build(Setting(space.ratios[0], 0), config)
    assert without.name == ("autoregressive" if space.length == "depth" else space.method.name)
    assert space.show(Setting(0.25, 3)).startswith(f"{space.length} 3, ")


def test_lookup_has_gammas_alone() -> None:
    config = TuneConfig(method=("lookup",))
    space = build_space(config)
    assert (space.budget, space.ratios) == (None, ())
    assert space.gammas == (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
    method = space.build(space.largest, config)
    assert isinstance(method, EngineMethod)
    assert method.gamma == 16
