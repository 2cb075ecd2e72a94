"""Passes of a run without its reports: what is on record, quickly."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.bench.backends import Backends, EngineHost
from specbench.bench.lossless import Judge
from specbench.bench.passes import Runner, interleave
from specbench.bench.plan import make_plan
from specbench.bench.run import run_record
from specbench.config_build import build_config
from specbench.engine.loader import describe_model
from specbench.results.store import RunStore


class Attempt:
    """One process's part of a run in `folder`: new, or resumed where there is one.

    Attributes
    ----------
    statuses : dict
        The last status of each arm.
    messages : dict
        And its message.
    host : EngineHost
    printed : str
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        options |= {"output": folder, "resume": (folder / "run.json").is_file()}
        plan = make_plan(build_config(options))
        config = plan.config
        model = describe_model(
            str(config.model), config.model_revision, config.rope_scaling, config.seed
        )
        text = io.StringIO()
        console = Console(file=text, width=200)
        self.host = EngineHost(plan)
        self.arms = {arm.name: arm.method for arm in plan.arms}
        opened = RunStore.resume if config.resume else RunStore.create
        with (
            opened(folder, run_record(plan, model, ["specbench"])) as store,
            Backends(plan, self.host, folder) as backends,
        ):
            runner = Runner(config, backends, plan.rows, store, console, self._stuck)
            runner.run(interleave(plan.arms, plan.workloads, config.repeats))
            Judge(config, self.host.engine, store).run(plan.arms, plan.workloads)
            ended = store.load_arms()
        self.statuses = {record.arm: record.status.value for record in ended}
        self.messages = {record.arm: record.message for record in ended}
        self.printed = text.getvalue()

    @staticmethod
    def _stuck(message: str) -> None:
        raise AssertionError(message)
