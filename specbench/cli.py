"""The command line: parsing and printing only."""

import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from pydantic import BaseModel

import specbench
from specbench.analyze.config import AnalyzeConfig
from specbench.cli_help import (
    PROTOCOL,
    REPORT_EXAMPLES,
    RUN_EXAMPLES,
    TUNE_EXAMPLES,
    GroupedCommand,
)
from specbench.cli_options import run_parameters, split_lists
from specbench.config import SweepConfig, TuneConfig
from specbench.config_build import build
from specbench.errors import SpecbenchError, UsageError
from specbench.train.config import TrainConfig

if TYPE_CHECKING:
    from rich.console import Console

CRASHED = 3
INTERRUPTED = 130
BROKEN_PIPE = 141
PIPED_COLUMNS = 120

# typer exports only this subclass of the error that every wrong option or argument raises.
_WrongUsage = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="specbench",
    help="Which speculative-decoding method pays on your model, data and GPU.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the start-up time
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process.

    The exit status is 0 for passed, 1 for a lossless method that was not, 2 for wrong usage, 3 for
    a run that failed, 130 for an interrupt.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        status = _call(arguments)
    except (SpecbenchError, _WrongUsage) as error:
        status = _fail(error, debug)
    except SystemExit:
        # How typer answers a closed pipe, but with the status of a LOSSY run.
        status = BROKEN_PIPE
    except Exception as error:  # the process's boundary: a crash must not end like a LOSSY run
        status = _crash(error, debug)
    sys.exit(status)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
) -> None:
    """Which speculative-decoding method pays on your model, data and GPU."""
    if version:
        typer.echo(f"specbench {specbench.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file of options; the command line overrides it.",
        rich_help_panel=PROTOCOL,
    ),
]


def _with_options(config: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `config`, in the place of its ``**options``."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *run_parameters(config)]
        )
        return command

    return with_options


@app.command(cls=GroupedCommand, epilog=RUN_EXAMPLES)
@_with_options(SweepConfig)
def run(
    context: typer.Context,
    config: _ConfigFile = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan with its memory and time; run nothing.",
            rich_help_panel=PROTOCOL,
        ),
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run the I-th of N parts of the plan, in a subfolder of the output.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Run methods beside autoregressive decoding."""
    chosen = build(SweepConfig, split_lists(options), config)

    from specbench.bench.loads import split_loads
    from specbench.bench.run import run_benchmark
    from specbench.bench.shards import parse_shard
    from specbench.bench.sweep import run_sweep

    part = parse_shard(shard) if shard else None
    console, argv = _console(), ["specbench", *context.obj]
    if len(split_loads(chosen)) > 1:
        if part:
            raise UsageError(
                "--shard divides a run at one load: give each machine a part of --batch-size and "
                "--context-len, and an --output of its own"
            )
        raise typer.Exit(run_sweep(chosen, console=console, argv=argv, dry_run=dry_run))
    one = chosen.run_config()
    raise typer.Exit(run_benchmark(one, console=console, argv=argv, shard=part, dry_run=dry_run))


@app.command(cls=GroupedCommand, epilog=REPORT_EXAMPLES)
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or of parts of a run.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where to; by default the folder of the only run."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Report runs that cannot be compared, marked so.")
    ] = False,
) -> None:
    """Make tables, plots and the page again, of one run or of several together."""
    from specbench.results.merge import report_folders

    raise typer.Exit(report_folders(folders, output, force, _console()))


@app.command(cls=GroupedCommand, epilog=TUNE_EXAMPLES)
@_with_options(TuneConfig)
def tune(context: typer.Context, config: _ConfigFile = None, **options: Any) -> None:
    """Find the settings of a method that pay best here."""
    chosen = build(TuneConfig, split_lists(options), config)

    from specbench.tune.run import run_tuning

    raise typer.Exit(run_tuning(chosen, console=_console(), argv=["specbench", *context.obj]))


train = typer.Typer(help="Train a draft for a target.", rich_markup_mode=None)
app.add_typer(train, name="train")


@train.command("longspec")
@_with_options(TrainConfig)
def train_longspec(context: typer.Context, config: _ConfigFile = None, **options: Any) -> None:
    """Train LongSpec's draft: one block that reads the target's last-layer KV."""
    chosen = build(TrainConfig, options, config)

    from specbench.train.run import run_training

    raise typer.Exit(run_training(chosen, console=_console(), argv=["specbench", *context.obj]))


analyze = typer.Typer(help="Measure what a method rests on.", rich_markup_mode=None)
app.add_typer(analyze, name="analyze")


@analyze.command("vegas")
@_with_options(AnalyzeConfig)
def analyze_vegas(context: typer.Context, config: _ConfigFile = None, **options: Any) -> None:
    """Time collecting kernels, compare rows' sets, and what sets from them accept."""
    chosen = build(AnalyzeConfig, split_lists(options), config)

    from specbench.analyze.run import run_analysis

    raise typer.Exit(run_analysis(chosen, console=_console(), argv=["specbench", *context.obj]))


@app.command("kernels")
def measure_kernels(
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="NAME", help="Case, or a pattern; may be repeated."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timings of each kernel, in turns.")] = 7,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder for kernels.csv.")
    ] = None,
) -> None:
    """Check and time the GPU kernels beside FlashAttention-3 and the copy bandwidth."""
    from rich.console import Console

    from specbench.bench.kernels.run import run_kernels

    console = Console(width=None if sys.stdout.isatty() else PIPED_COLUMNS)
    run_kernels(tuple(case or ()), repeats, output, console)


@app.command("ls")
def list_known(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[methods|datasets|models]", help="What to list; all by default."),
    ] = None,
) -> None:
    """List methods, datasets and models."""
    from specbench.cli_listing import listing

    typer.echo(listing(kind))


@app.command()
def doctor() -> None:
    """Show what can run here and how to mend the rest."""
    from specbench.cli_listing import doctor_report

    text, healthy = doctor_report()
    typer.echo(text)
    raise typer.Exit(0 if healthy else CRASHED)


def _console() -> "Console":
    from rich.console import Console

    # piped output has no width of its own, and 80 columns would break the table's words
    return Console(width=None if sys.stdout.isatty() else PIPED_COLUMNS)


def _call(arguments: list[str]) -> int:
    try:
        status = app(
            args=[argument for argument in arguments if argument != "--debug"],
            prog_name="specbench",
            standalone_mode=False,
            obj=arguments,
        )
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        typer.echo("specbench: interrupted; --resume continues a run", err=True)
    return status or 0


def _fail(error: Exception, debug: bool) -> int:
    if debug:
        _show_traceback(error)
    if isinstance(error, SpecbenchError):
        _say(f"specbench: error: {error}")
        return error.exit_status
    message = " ".join(cast(typer.BadParameter, error).format_message().split())
    _say(f"specbench: error: {message} ('specbench --help' shows the usage)")
    return 2


def _crash(error: Exception, debug: bool) -> int:
    if debug:
        _show_traceback(error)
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(specbench.__file__).parent
    place = [frame for frame in frames if Path(frame.filename).is_relative_to(package)][-1]
    _say(
        f"specbench: crashed in {Path(place.filename).name}:{place.lineno}: "
        f"{type(error).__name__}: {error} (--debug shows the traceback)"
    )
    return CRASHED


def _show_traceback(error: Exception) -> None:
    _say("".join(traceback.format_exception(error)).rstrip())


def _say(message: str) -> None:
    """On standard error, without secrets and with nothing that no terminal can show."""
    from specbench.bench.redact import hide_secrets
    from specbench.results.plain import one_line

    text = hide_secrets(message).encode(errors="replace").decode()
    typer.echo("\n".join(map(one_line, text.split("\n"))), err=True)
