"""A schedule: a method's best settings by load, as a tuning of several loads leaves them."""

from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from specbench.config import METHOD_FIELDS
from specbench.config_build import read_yaml
from specbench.errors import UsageError
from specbench.methods import METHODS


@dataclass(frozen=True)
class Entry:
    """The best settings of one load.

    Attributes
    ----------
    batch_size : int
        Requests that decode together.
    context : int
        Mean length of their prompts, in tokens.
    options : dict
        Options of a run; ``method: autoregressive`` where the method cannot go without drafts.
    """

    batch_size: int
    context: int
    options: dict[str, Any]

    def distance(self, batch: int, context: float) -> float:
        """Doublings of the batch and of the context between this load and another."""
        return abs(log2(batch / self.batch_size)) + abs(log2(context / self.context))

    @property
    def label(self) -> str:
        """The options for people."""
        if "method" in self.options or self.options.get("gamma") == 0:
            return "no drafts"
        return ", ".join(f"{name} {_text(value)}" for name, value in self.options.items())


class _EntryModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    batch_size: PositiveInt
    context: PositiveInt
    options: dict[str, Any]


class _ScheduleModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    method: str
    settings: dict[str, Any] = {}
    loads: list[_EntryModel]


@dataclass(frozen=True)
class Schedule:
    """Settings of one method by load.

    Attributes
    ----------
    method : str
    settings : dict
        Of the method, the same for all loads.
    loads : tuple of Entry
    """

    method: str
    settings: dict[str, Any]
    loads: tuple[Entry, ...]

    def write(self, path: Path) -> None:
        """As the YAML file that `read_schedule` takes."""
        from specbench.results.report import write_file

        content = plain(
            {
                "method": self.method,
                "settings": self.settings,
                "loads": [vars(entry) for entry in self.loads],
            }
        )
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        head = f"# specbench run --schedule {path.name}; context: mean length of prompts, tokens\n"
        write_file(path, (head + text).encode())

    def nearest(self, batch: int, context: float) -> Entry:
        """The load that is closest in doublings; of equals the smaller one."""
        return min(
            self.loads,
            key=lambda e: (round(e.distance(batch, context), 9), e.batch_size, e.context),
        )

    def outside(self, batch: int, context: float) -> str | None:
        """What of a load lies outside what was measured."""
        parts = []
        for name, value, known in (
            ("batch", batch, [entry.batch_size for entry in self.loads]),
            ("context", round(context), [entry.context for entry in self.loads]),
        ):
            # contexts are means of other prompts, so that a few tokens are no other load
            if not min(known) / 1.1 <= value <= max(known) * 1.1:
                low, high = min(known), max(known)
                measured = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                parts.append(f"{name} {value:,} is outside the measured {measured}")
        return " and ".join(parts) or None


def read_schedule(path: Path) -> Schedule:
    """The schedule in a YAML file.

    Raises
    ------
    UsageError
        It cannot be read, or is no schedule.
    """
    try:
        content = _ScheduleModel(**read_yaml(path))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UsageError(f"{path} is no schedule: {where}: {error.errors()[0]['msg']}") from error
    if not content.loads:
        raise UsageError(f"{path} is no schedule: it has no loads")
    METHODS.get(content.method)
    known = {*METHOD_FIELDS, "method"}
    for name in (*content.settings, *(key for load in content.loads for key in load.options)):
        if name not in known:
            raise UsageError(f"{path} is no schedule: {name} is no setting of a method")
    loads = [
        Entry(load.batch_size, load.context, {k: _tuples(v) for k, v in load.options.items()})
        for load in content.loads
    ]
    settings = {name: _tuples(value) for name, value in content.settings.items()}
    return Schedule(content.method, settings, tuple(loads))


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A value of YAML's types alone."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _text(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
