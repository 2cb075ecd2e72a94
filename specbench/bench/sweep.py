"""`specbench run` at several loads: one after the other, with one model and one vLLM in memory."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.backends import EngineHost, Weights
from specbench.bench.loads import plan_loads, split_loads
from specbench.bench.plan import Plan, make_plan
from specbench.bench.run import INTERRUPTED, output_folder, plan_cost, run_plan, say_choices
from specbench.bench.scheduled import settled
from specbench.bench.servers import Servers
from specbench.bench.tuned import without_method
from specbench.config import SweepConfig
from specbench.errors import SpecbenchError
from specbench.results.folder import refuse_run, refuse_unwritable
from specbench.results.reading import RUN, read_run
from specbench.results.report import write_reports
from specbench.results.store import RunStore
from specbench.results.terminal import print_summary

if TYPE_CHECKING:
    from rich.console import Console


def run_sweep(
    config: SweepConfig, *, console: "Console", argv: Sequence[str], dry_run: bool = False
) -> int:
    """Run each load into a subfolder of the output, and report them together.

    A load has at least as many prompts as its batch. The weights are loaded once. An arm of vLLM is
    started once, with the length and the KV cache of the largest load, unless its arguments depend
    on the batch. A load that is complete is kept by ``--resume``.

    Parameters
    ----------
    config : SweepConfig
        Of several loads.
    console : Console
    argv : sequence of str
    dry_run : bool
        Print the plans, and run nothing.

    Returns
    -------
    int
        As `run_benchmark`; of several, a wrong output outranks a missing one.

    Raises
    ------
    SpecbenchError
        Before anything was measured: a load that cannot run is named.
    """
    import torch

    began = time.perf_counter()
    folder = output_folder(without_method(config))
    if not dry_run:
        _check_output(folder, config.resume)
    if config.threads:
        torch.set_num_threads(config.threads)
    plans = plan_loads(
        split_loads(config), lambda name, part: _plan(name, part, folder), lambda plan: plan
    )
    for name, plan in plans.items():
        console.print(f"load {name}", style="bold", highlight=False)
        say_choices(plan, console)
        if dry_run:
            console.print(plan_cost(plan, folder / name))
    if dry_run:
        return 0
    weights = Weights(max(plans.values(), key=lambda plan: plan.max_len))
    statuses = []
    with Servers(list(plans.values())) as servers:
        for name, plan in plans.items():
            console.print(f"\nload {name}", style="bold", highlight=False)
            host = EngineHost(plan, weights)
            try:
                statuses.append(
                    run_plan(
                        plan,
                        host,
                        folder / name,
                        console=console,
                        argv=argv,
                        began=time.perf_counter(),
                        servers=servers,
                    )
                )
            finally:
                host.close()
            if statuses[-1] == INTERRUPTED:
                return INTERRUPTED
    summary = write_reports([folder], folder)
    print_summary(summary, console)
    seconds = time.perf_counter() - began
    console.print(
        f"{len(plans)} loads in {folder} after {seconds:.0f} s",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 1 if 1 in statuses else max(statuses)


def _plan(name: str, part: SweepConfig, folder: Path) -> Plan:
    """A load's plan; it continues what its folder holds."""
    there, one = folder / name, part.run_config()
    updates = {"output": there, "resume": one.resume and (there / RUN).is_file()}
    if one.num_prompts is not None and one.batch_size is not None:
        updates["num_prompts"] = max(one.num_prompts, one.batch_size)
    try:
        return make_plan(settled(one.model_copy(update=updates)))
    except SpecbenchError as error:
        raise type(error)(f"load {name}: {error}") from error


def _check_output(folder: Path, resume: bool) -> None:
    """Refuse early a folder that holds something else."""
    refuse_run(folder)
    if not resume:
        RunStore.check_free(folder)
        return
    refuse_unwritable(folder)
    for found in folder.glob(f"*/{RUN}"):
        read_run(found.parent)
