"""What figures are made of, within the parts of `run.json` that are otherwise free in form."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import DataError
from specbench.results.records import RunRecord

MOST_REPEATS = 10_000
MOST_DRAFTS = 1024
_Count = Annotated[int, Field(ge=1, le=2**31)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Facts(BaseModel):
    """Fields that are read somewhere; others may hold anything."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Config(_Facts):
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: _Count | None = None
    batch_size: _Count | None = None
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS)] | None = None
    temperature: _Number | None = None
    top_p: _Number = 1.0
    top_k: int | None = None
    ignore_eos: bool | None = None


class _Device(_Facts):
    name: str


class _Git(_Facts):
    commit: str | None = None


class _Environment(_Facts):
    specbench: str | None = None
    git: _Git | None = None
    argv: list[str] | None = None
    cpu: str | None = None
    threads: _Count | None = None
    gpus: list[_Device] | None = None
    driver: str | None = None
    versions: dict[str, str | None] | None = None


class _Model(_Facts):
    spec: str | None = None
    dummy: bool | None = None
    checkpoint_sha256: str | None = None


class _Parameters(_Facts):
    variant: str | None = None
    gamma: Annotated[int, Field(ge=0, le=MOST_DRAFTS)] | None = None
    kept_ratio: _Number | None = None


def check_facts(run: RunRecord, where: str) -> None:
    """Refuse a run whose free parts hold what no run writes.

    Raises
    ------
    DataError
        A setting of another type or beyond any use, or two datasets, arms or prompts of one name;
        the message begins with `where` and names it.
    """
    _check(_Config, run.config, f"{where}: config")
    _check(_Environment, run.environment, f"{where}: environment")
    _check(_Model, run.model, f"{where}: model")
    for number, arm in enumerate(run.arms):
        _check(_Parameters, arm.parameters, f"{where}: arms.{number}.parameters")
    _refuse_double((arm.name for arm in run.arms), f"{where}: arms")
    _refuse_double((entry.name for entry in run.datasets), f"{where}: datasets")
    for entry in run.datasets:
        _refuse_double((prompt.index for prompt in entry.prompts), f"{where}: {entry.name} prompts")


def first_error(error: ValidationError) -> str:
    """The place and the reason of the first of pydantic's errors."""
    first = error.errors()[0]
    place = ".".join(str(step)[:60] for step in first["loc"])
    return f"{place}: {first['msg'][:300]}"


def _check(kind: type[_Facts], content: dict[str, Any], where: str) -> None:
    try:
        kind.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{where}.{first_error(error)}") from error


def _refuse_double(names: Iterable[Any], where: str) -> None:
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise DataError(f"{where} has {str(double)[:60]!r} twice")
