"""`specbench report`: reports made again from records, of one run or of several together."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UsageError
from specbench.results.folder import refuse_run
from specbench.results.report import write_reports
from specbench.results.sources import read_sources
from specbench.results.terminal import print_summary

if TYPE_CHECKING:
    from rich.console import Console


def report_folders(
    folders: Sequence[Path], output: Path | None, force: bool, console: "Console"
) -> int:
    """Write and print the report of the runs in `folders`.

    Parameters
    ----------
    folders : sequence of Path
        Of runs, or of folders that hold runs (the parts of a sharded one).
    output : Path or None
        Where to. By default the folder of the only run, the folder given where it holds several
        runs, else a new one under ``runs/``.
    force : bool
        Report runs that cannot be compared, marked.
    console : Console

    Returns
    -------
    int
        The exit status that a run with these records would end with.

    Raises
    ------
    SpecbenchError
        See `summarise`; also where `output` holds a run that is not the only one reported.
    """
    runs = [source.folder for source in read_sources(folders)]
    if output is None and len(runs) > 1:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        output = folders[0] if len(folders) == 1 else Path("runs") / f"{stamp}-report"
    if output is not None and [run.resolve() for run in runs] != [output.resolve()]:
        refuse_run(output)
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"the output {output} is a file; give a folder with --output")
    summary = write_reports(folders, output, force)
    print_summary(summary, console)
    console.print(
        f"{len(summary.files)} files in {output or runs[0]}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return summary.exit_status
