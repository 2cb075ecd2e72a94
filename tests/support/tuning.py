"""The three steps over a measure, in memory or in a storage, without a model."""

import io
from types import SimpleNamespace
from typing import Any

import optuna
from rich.console import Console

from specbench.tune.sample import Measure
from specbench.tune.space import Setting, Space
from specbench.tune.trials import Rules
from specbench.tune.tuning import Tuning

RULES = Rules("throughput", 3, None)


class Tuned(Tuning):
    """A tuning of a synthetic measure, and what it printed."""

    def __init__(
        self, measure: Measure, space: Space, storage: Any = None, rules: Rules = RULES
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.storage = storage or optuna.storages.InMemoryStorage()
        self.text = io.StringIO()
        job: Any = SimpleNamespace(space=space, rules=rules, identity={"space": "synthetic"})
        console = Console(file=self.text, width=200)
        super().__init__(job, self.storage, "test", measure, console)

    @property
    def choice(self) -> Setting:
        """Of the last step."""
        return self.chosen[max(self.chosen)]


def tune(measure: Measure, space: Space, storage: Any = None, rules: Rules = RULES) -> Tuned:
    """Run the three steps."""
    tuned = Tuned(measure, space, storage, rules)
    tuned.run()
    return tuned
