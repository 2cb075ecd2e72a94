"""The bars of a tuning: on a terminal only, each step with its best so far."""

import io

import pytest
from rich.console import Console

from specbench.tune.progress import StepProgress
from specbench.tune.sample import Sample
from specbench.tune.space import Setting
from tests.support.cost_model import CostModel, vegas_space
from tests.support.tuning import Tuned


def shown(terminal: bool, ended: bool) -> str:
    """What a step in its second trial leaves on the console."""
    file = io.StringIO()
    with StepProgress(Console(file=file, force_terminal=terminal, width=160)) as progress:
        progress.step(2, "gamma at kept_ratio 0.1", most=11, done=1)
        progress.trial("gamma 4, ratio 0.1", passes=6)
        measure = progress.counted(lambda setting, repeat: Sample(1.0, 1000.0, ()))
        assert measure(Setting(0.1, 4), 0).throughput == 1.0
        if ended:
            progress.ended("gamma 3, ratio 0.1: 120 tok/s")
    return file.getvalue()


def test_a_step_shows_its_trial_and_passes_then_the_best_so_far() -> None:
    running, ended = (shown(terminal=True, ended=ended) for ended in (False, True))
    for part in ("step 2  gamma at kept_ratio 0.1", "1/11", "trial  gamma 4, ratio 0.1", "1/6"):
        assert part in running
    assert "best" not in running
    for part in ("2/11", "best gamma 3, ratio 0.1: 120 tok/s"):
        assert part in ended


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_no_terminal_stays_quiet(ended: bool) -> None:
    assert shown(terminal=False, ended=ended) == ""


def test_lines_of_a_tuning_stand_above_the_bars() -> None:
    tuned = Tuned(CostModel(1), vegas_space(), terminal=True)
    tuned.run()
    lines = tuned.text.getvalue()
    assert "step 3  choice: " in lines
    assert "best gamma" in lines
    assert "━" in lines
