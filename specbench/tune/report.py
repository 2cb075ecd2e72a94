"""What a tuning leaves: trials.csv, tuned.yaml, comparison.csv, curves, and the last lines."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from specbench.config import RunConfig
from specbench.results.plain import spreadsheet
from specbench.results.report import write_file
from specbench.tune.final import Comparison
from specbench.tune.ledger import TrialRow
from specbench.tune.space import Setting, Space
from specbench.tune.trials import Rules

if TYPE_CHECKING:
    from rich.console import Console

TRIALS = "trials.csv"
TUNED = "tuned.yaml"
COMPARISON = "comparison.csv"
COLUMNS = (
    "step",
    "trial",
    "gamma",
    "status",
    "value",
    "unit",
    "noise",
    "spec_decode_acceptance_length",
    "output_throughput",
    "mean_tpot_ms",
    "passes",
    "seconds",
    "chosen",
    "reason",
)
_NOT_TUNED = ("output", "resume", "repeats")


def write_trials(
    folder: Path, rows: Sequence[TrialRow], chosen: dict[int, Setting], space: Space, rules: Rules
) -> Path:
    """Write ``trials.csv``: every trial of every step; unknown is an empty field.

    `chosen` marks one trial a step, where the step itself measured its choice.
    """
    import pandas as pd

    budget = space.budget or "budget"
    table = []
    for row in rows:
        passed = row.status == "PASSED"
        table.append(
            {
                "step": row.step,
                "trial": row.trial,
                budget: row.setting.ratio,
                "gamma": row.setting.gamma,
                "status": row.status,
                "value": row.value,
                "unit": "tokens/step" if row.step == 1 else rules.unit,
                "noise": row.noise,
                "spec_decode_acceptance_length": row.acceptance_length,
                "output_throughput": row.throughput,
                "mean_tpot_ms": row.tpot_ms,
                "passes": row.passes,
                "seconds": row.seconds,
                "chosen": passed and row.step in chosen and chosen[row.step].key == row.setting.key,
                "reason": row.reason,
            }
        )
    columns = [*COLUMNS[:2], budget, *COLUMNS[2:]]
    frame = pd.DataFrame(table, columns=columns, dtype=object).map(spreadsheet)
    return write_file(folder / TRIALS, frame.to_csv(index=False).encode())


def write_tuned(folder: Path, config: RunConfig, space: Space, setting: Setting) -> Path:
    """Write ``tuned.yaml``, which ``specbench run --config`` takes.

    Parameters
    ----------
    folder : Path
    config : RunConfig
        Fully resolved; what differs from the defaults is written.
    space : Space
    setting : Setting
        The choice.
    """
    values = config.model_copy(update=space.options(setting)).model_dump(mode="json")
    defaults = RunConfig().model_dump(mode="json")
    changed = {
        name: value
        for name, value in values.items()
        if name not in _NOT_TUNED and value != defaults[name]
    }
    text = f"# specbench run --config {TUNED}\n" + yaml.safe_dump(changed, sort_keys=False)
    return write_file(folder / TUNED, text.encode())


def write_comparison(folder: Path, comparisons: Sequence[Comparison]) -> Path:
    """Write ``comparison.csv``: ratios of decode throughput on the held-out prompts."""
    import pandas as pd

    columns = ["arm", "over", "value", "low", "high"]
    rows = [asdict(c) for c in comparisons]
    frame = pd.DataFrame(rows, columns=columns, dtype=object).map(spreadsheet)
    return write_file(folder / COMPARISON, frame.to_csv(index=False).encode())


def print_choice(
    console: "Console",
    chosen: dict[int, Setting],
    titles: dict[int, str],
    comparisons: Sequence[Comparison],
) -> None:
    """Print each step's choice and the held-out comparison."""
    for number, setting in chosen.items():
        console.print(f"step {number}  {titles[number]}: {setting}", markup=False, highlight=False)
    last = chosen[max(chosen)]
    if last.gamma == 0:
        console.print("no drafts is the best choice: speculation does not pay here", style="bold")
    for c in comparisons:
        known = c.value is not None
        ratio = "unknown" if not known else f"{c.value:.2f}"
        if c.low is not None and c.high is not None:
            ratio += f" [{c.low:.2f}–{c.high:.2f}]"
        console.print(
            f"held-out decode throughput of {c.arm} over {c.over}: {ratio}",
            markup=False,
            highlight=False,
        )
