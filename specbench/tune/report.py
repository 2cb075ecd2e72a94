"""What a tuning leaves: trials.csv, tuned.yaml, comparison.csv, curves, and the last lines."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from specbench.bench.tuned import TUNED
from specbench.config import METHOD_FIELDS, RunConfig
from specbench.results.plain import spreadsheet
from specbench.results.report import write_file
from specbench.tune.final import Comparison
from specbench.tune.ledger import TrialRow
from specbench.tune.space import Setting, Space
from specbench.tune.trials import Rules

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.tune.tuning import Tuning

TRIALS = "trials.csv"
COMPARISON = "comparison.csv"
SCHEDULE = "schedule.yaml"
COLUMNS = (
    "step",
    "trial",
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
NO_DRAFTS = "no drafts is the best choice: speculation does not pay here"
_NOT_TUNED = ("output", "resume", "repeats")


def trial_rows(
    rows: Sequence[TrialRow], chosen: dict[int, Setting], space: Space, rules: Rules
) -> list[dict[str, Any]]:
    """Every trial of every step as columns; None is unknown.

    `chosen` marks one trial a step, where the step itself measured its choice.
    """
    table = []
    for row in rows:
        passed = row.status == "PASSED"
        table.append(
            {
                "step": row.step,
                "trial": row.trial,
                space.budget or "budget": row.setting.ratio,
                space.length: row.setting.gamma,
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
    return table


def write_trials(folder: Path, table: Sequence[dict[str, Any]], space: Space) -> Path:
    """Write ``trials.csv`` of `trial_rows`; unknown is an empty field."""
    import pandas as pd

    columns = [*COLUMNS[:2], space.budget or "budget", space.length, *COLUMNS[2:]]
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
    options = space.options(setting)
    values = config.model_copy(update=options).model_dump(mode="json")
    defaults = RunConfig().model_dump(mode="json")
    # another method, which does not draft, has none of the settings
    left_out = (*_NOT_TUNED, *(METHOD_FIELDS if "method" in options else ()))
    changed = {
        name: value
        for name, value in values.items()
        if name not in left_out and value != defaults[name]
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


def print_choice(console: "Console", tuning: "Tuning", comparisons: Sequence[Comparison]) -> None:
    """Print each step's choice and the held-out comparison."""
    for line in choice_lines(tuning, comparisons):
        style = "bold" if line == NO_DRAFTS else None
        console.print(line, style=style, markup=False, highlight=False)


def choice_lines(tuning: "Tuning", comparisons: Sequence[Comparison]) -> list[str]:
    """Each step's choice, and the held-out comparison."""
    show = tuning.job.space.show
    lines = [
        f"step {number}  {tuning.titles[number]}: {show(setting)}"
        for number, setting in tuning.chosen.items()
    ]
    if tuning.grid_best is not None:
        lines.append(f"step 4  best of the grids: {show(tuning.grid_best)}")
    if tuning.choice.gamma == 0:
        lines.append(NO_DRAFTS)
    for c in comparisons:
        lines.append(f"held-out decode throughput of {c.arm} over {c.over}: {ratio_text(c)}")
    return lines


def ratio_text(comparison: Comparison) -> str:
    """A ratio with its interval."""
    if comparison.value is None:
        return "unknown"
    if comparison.same:
        return "1, being the same setting"
    text = f"{comparison.value:.2f}"
    if comparison.low is None or comparison.high is None:
        return text
    return f"{text} [{comparison.low:.2f}–{comparison.high:.2f}]"
