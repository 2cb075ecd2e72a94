"""The whole search on a machine whose optimum is known: is it found, and at which price?"""

import pytest

from specbench.tune.sample import Sample
from specbench.tune.space import Setting
from specbench.tune.trials import Rules
from tests.support.cost_model import CostModel, vegas_space
from tests.support.tuning import RULES, tune


def test_the_choice_is_near_the_best_and_cheap() -> None:
    space = vegas_space()
    exhaustive = len(space.ratios) * len(space.gammas) * RULES.repeats
    near, spent = 0, []
    for seed in range(100):
        machine = CostModel(seed)
        choice = tune(machine, space).choice
        near += machine.throughput(choice) >= 0.97 * machine.best(space)
        spent.append(len(machine.passes) / exhaustive)
    assert near >= 95
    assert max(spent) <= 0.4
    assert sum(spent) / len(spent) < 0.25


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_choice(seed: int) -> None:
    first, second = (tune(CostModel(seed), vegas_space()) for _ in range(2))
    assert first.chosen == second.chosen
    assert [r.value for r in first.rows()] == [r.value for r in second.rows()]


def test_no_drafts_wins_where_drafts_are_as_dear_as_tokens() -> None:
    machine = CostModel(0)
    machine.fixed, machine.verify = 1.0, 0.2
    tuned = tune(machine, vegas_space())
    assert tuned.choice.gamma == 0
    assert tuned.chosen[2].gamma == 0


def test_tpot_is_made_small() -> None:
    machine, space = CostModel(3, noise=0.0), vegas_space()
    tuned = tune(machine, space, rules=Rules("tpot", 3, None))
    assert machine.throughput(tuned.choice) >= 0.97 * machine.best(space)
    rows = [row for row in tuned.rows() if row.step == 2]
    assert all(row.value == pytest.approx(row.tpot_ms, rel=0.2) for row in rows)


def test_a_named_grid_is_measured_whole() -> None:
    machine = CostModel(1)
    space = vegas_space(
        ratios=(0.05, 0.1, 0.2), gammas=(0, 2, 4), sweep_ratios=True, sweep_gammas=True
    )
    rows = tune(machine, space).rows()
    assert {r.setting.ratio for r in rows if r.step == 1} == {0.05, 0.1, 0.2}
    assert {r.setting.gamma for r in rows if r.step == 2} == {0, 2, 4}
    refined = {r.setting for r in rows if r.step > 1}
    best = max(refined, key=machine.throughput)
    assert {s.ratio for s in refined if s.gamma == best.gamma} == {0.05, 0.1, 0.2}


def test_an_exhaustive_tuning_measures_the_rest_once_and_keeps_the_choice() -> None:
    rules = Rules("throughput", 3, None, exhaustive=True)
    space = vegas_space(ratios=(0.02, 0.05, 0.1, 0.3), gammas=(0, 1, 2, 4, 8, 16))
    machine = CostModel(1)
    tuned = tune(machine, space, rules=rules)
    timed = [row.setting.key for row in tuned.rows() if row.step > 1]
    assert sorted(timed, key=str) == sorted((s.key for s in space.grid), key=str)
    assert {row.step for row in tuned.rows()} == {1, 2, 3, 4}
    assert tuned.choice == tune(CostModel(1), space).choice
    assert tuned.grid_best is not None
    assert machine.throughput(tuned.grid_best) >= 0.97 * machine.best(space)
    assert len(space.grid) == 1 + 4 * 5
    before = len(machine.passes)
    again = tune(machine, space, tuned.storage, rules)
    assert (again.grid_best, len(machine.passes)) == (tuned.grid_best, before)


def test_a_setting_is_measured_once_and_looked_up_then() -> None:
    machine, space = CostModel(2), vegas_space()
    tuned = tune(machine, space)
    settings = [row.setting.key for row in tuned.rows() if row.step > 1]
    assert len(settings) == len(set(settings))
    before = len(machine.passes)
    again = tune(machine, space, tuned.storage)
    assert again.chosen == tuned.chosen
    assert len(machine.passes) == before


def test_a_method_with_gamma_alone_and_one_with_a_budget_alone() -> None:
    machine = CostModel(4)

    def lookup(setting: Setting, repeat: int) -> Sample:
        return machine(Setting(0.1, setting.gamma), repeat)

    gamma_only = tune(lookup, vegas_space(budget=None, ratios=(), start=Setting(None, 6)))
    assert list(gamma_only.chosen) == [2]
    assert gamma_only.choice.ratio is None

    def fixed(setting: Setting, repeat: int) -> Sample:
        return machine(Setting(setting.ratio, 4), repeat)

    space = vegas_space(gammas=(), probe_gamma=None, start=Setting(0.07, None))
    budget_only = tune(fixed, space)
    assert list(budget_only.chosen) == [1, 3]
    assert budget_only.choice.gamma is None


def test_the_budget_ends_the_search_with_the_best_so_far() -> None:
    machine = CostModel(5)
    tuned = tune(machine, vegas_space(), rules=Rules("throughput", 3, 0.0))
    by_step = [[row for row in tuned.rows() if row.step == step] for step in (1, 2, 3)]
    assert [len(rows) for rows in by_step] == [1, 2, 0]
    assert tuned.choice in [row.setting for row in by_step[1]]
