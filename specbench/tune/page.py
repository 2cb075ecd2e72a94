"""`report.html` of a tuning: the choice and its proof, every trial, the plots, the commands."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.tuned import TUNED
from specbench.results.page import render_template, run_facts
from specbench.results.page.tables import page_table
from specbench.results.protocol import model_name, protocol_lines
from specbench.results.reading import read_run
from specbench.results.report import summarise, write_file
from specbench.results.summary_table import COLUMNS, STATUS, Column
from specbench.results.terminal import CPU_NOTE
from specbench.tune.final import Comparison
from specbench.tune.report import SCHEDULE, choice_lines
from specbench.tune.space import Space

if TYPE_CHECKING:
    from specbench.tune.tuning import Tuning

PAGE = "report.html"
COMPARISON = (
    Column("arm", "arm"),
    Column("over", "over"),
    Column("value", "ratio of decode throughput [95 %]", "interval"),
)


def write_page(
    folder: Path, final: Path, tuning: "Tuning", comparisons: Sequence[Comparison]
) -> Path:
    """Write the page of one load's tuning, whose final run is in `final`."""
    summary = summarise(final)
    space, run = tuning.job.space, summary.runs[0]
    dataset = run.datasets[0].name
    compared = [asdict(c) | {"value_low": c.low, "value_high": c.high} for c in comparisons]
    tables = [
        page_table("Held-out prompts: the choice beside other settings", COMPARISON, compared),
        page_table("Held-out prompts: every arm", COLUMNS, summary.rows),
        page_table("Trials", _trial_columns(tuning), [_shown(row) for row in tuning.table()]),
    ]
    text = render_template(
        "tuning.html.j2",
        plots=tuning.plots,
        title=f"Tuning of {space.method.name} for {model_name(run)} on {dataset}",
        header=summary.header,
        cpu_note=CPU_NOTE if run.config.get("device") == "cpu" else None,
        findings=[f"choice: {space.show(tuning.choice)}", *choice_lines(tuning, comparisons)],
        tables=tables,
        links={f"The run on the held-out prompts: {final.name}": f"{final.name}/{PAGE}"},
        warnings=summary.warnings,
        runs=[run_facts(run, None)],
        again=[
            shlex.join(["specbench", "run", "--config", TUNED]),
            shlex.join(["specbench", "report", final.name]),
        ],
    )
    return write_file(folder / PAGE, text.encode())


def write_loads_page(
    folder: Path,
    space: Space,
    rows: Sequence[dict[str, Any]],
    finals: Mapping[str, Path],
    plots: Mapping[str, bytes],
) -> Path:
    """Write the page of a tuning of several loads.

    Parameters
    ----------
    folder : Path
    space : Space
    rows : sequence of dict
        Of ``loads.csv``.
    finals : mapping of str to Path
        The folders of the final runs by load.
    plots : mapping of str to bytes
    """
    runs = {load: read_run(final) for load, final in finals.items()}
    first = next(iter(runs.values()))
    columns = (
        Column("load", "load"),
        Column("choice", "choice"),
        Column("batch", "batch", "number", "d"),
        Column("mean_prompt_tokens", "context", "number", ",d"),
        Column(space.budget or "budget", space.budget or "budget", "number", "g"),
        Column(space.length, space.length, "number", "d"),
        Column("output_throughput", "decode tok/s", "number", ",.1f"),
        Column("over_default", "over default [95 %]", "interval"),
        Column("over_autoregressive", "over autoregressive [95 %]", "interval"),
    )
    text = render_template(
        "tuning.html.j2",
        plots=plots,
        title=f"Tuning of {space.method.name} for {model_name(first)} by load",
        header=protocol_lines(list(runs.values())),
        cpu_note=CPU_NOTE if first.config.get("device") == "cpu" else None,
        findings=[f"{row['load']}: {row['choice'] or 'no choice'}" for row in rows],
        tables=[page_table("Held-out prompts: the choice of each load", columns, rows)],
        links={f"The tuning of {load}": f"{load}/{PAGE}" for load in runs},
        warnings=[],
        runs=[run_facts(run, load) for load, run in runs.items()],
        again=[shlex.join(["specbench", "run", "--schedule", SCHEDULE])],
    )
    return write_file(folder / PAGE, text.encode())


def _trial_columns(tuning: "Tuning") -> list[Column]:
    space = tuning.job.space
    return [
        Column("step", "step", "number", "d"),
        Column("trial", "trial", "number", "d"),
        Column(space.budget or "budget", space.budget or "budget", "number", "g"),
        Column(space.length, space.length, "number", "d"),
        STATUS,
        Column("value", "value", "number", ",.3f"),
        Column("unit", "unit"),
        Column("noise", "noise %", "number", ".2f", scale=100),
        Column("spec_decode_acceptance_length", "AL", "number"),
        Column("output_throughput", "decode tok/s", "number", ",.1f"),
        Column("mean_tpot_ms", "mean TPOT ms", "number", ",.2f"),
        Column("passes", "passes", "number", "d"),
        Column("seconds", "seconds", "number", ",.1f"),
        Column("chosen", "chosen"),
        Column("reason", "reason"),
    ]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"chosen": "chosen" if row["chosen"] else None}
