"""Where the studies live: a journal file, or any database that Optuna can use."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError

from specbench.bench.redact import redact_text
from specbench.errors import DataError, UsageError
from specbench.results.identity import differences

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "study.journal"
IDENTITY = "specbench"
_TRIES, _TRY_S = 20, 0.1
# what databases call a table, a type or a row of Optuna's schema that has just come into being
_MADE_MEANWHILE = re.compile(r"already exists|unique|duplicate", re.IGNORECASE)
_DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)
_WAIT_S = {"sqlite": {"timeout": 60}, "postgresql": {"connect_timeout": 10}}


def open_storage(location: str | None, folder: Path) -> "tuple[BaseStorage, str]":
    """The storage and its name for messages, without a password.

    Parameters
    ----------
    location : str, optional
        A URL (``://``), or the path of a journal file; a journal in `folder` by default.
    folder : Path
        The output folder.

    Raises
    ------
    UsageError
        No valid URL, a driver that is not installed, a file that is no journal.
    DataError
        A storage that cannot be reached, is locked or was written by another Optuna.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if location is None or "://" not in location:
        from specbench.tune.journal import LockedJournal

        path = Path(location) if location else folder / JOURNAL
        with storage_errors(str(path)):
            try:
                return optuna.storages.JournalStorage(LockedJournal(path)), str(path)
            # what Optuna makes of entries that are not as it wrote them
            except _DAMAGED as error:
                reason = _first(error)[:200].encode(errors="replace").decode()
                raise DataError(
                    f"the journal {path} is damaged: {type(error).__name__}: {reason}"
                ) from error
    name = redact_text(location)
    if location.partition("?")[0].count("@") > 1:
        # what follows the first would be taken for a host, and be told in messages
        raise UsageError(f"--storage {name}: write the @ of a user or password as %40")
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    dialect = location.partition(":")[0].partition("+")[0]
    options = {"connect_args": _WAIT_S.get(dialect, {}), "pool_pre_ping": True}
    try:
        with storage_errors(name):
            return _open_database(location, options), name
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise UsageError(f"--storage {name}: no URL of a database: {_first(error)}") from error
    except ImportError as error:
        raise UsageError(
            f"--storage {name}: its driver is not installed ({_first(error)}); install it (psycopg "
            "comes with specbench[postgresql]), or name an installed one, as in "
            "postgresql+psycopg://"
        ) from error


def _open_database(location: str, options: dict[str, Any]) -> "BaseStorage":
    """Open a database, and make its tables, which another worker may be doing just now."""
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for left in reversed(range(_TRIES)):
        try:
            return optuna.storages.RDBStorage(location, engine_kwargs=options)
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not left or not _MADE_MEANWHILE.search(str(error.orig)):
                raise
            time.sleep(_TRY_S)
    raise AssertionError("the last try returns or raises")


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Turn what a storage raises into one message that names it."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (StorageInternalError, DBAPIError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = _first(getattr(cause, "orig", None) or cause or error)
        raise DataError(
            f"the storage {redact_text(name)} cannot be used: {redact_text(reason)}; what it holds "
            "is unharmed, and --resume continues"
        ) from error
    except (json.JSONDecodeError, KeyError) as error:
        raise DataError(f"the journal {name} is damaged: {error!r}") from error
    except RuntimeError as error:
        if "schema" not in str(error) and "optuna" not in str(error):
            raise
        raise DataError(f"the storage {name} is of another Optuna: {_first(error)}") from error


def check_studies(
    storage: "BaseStorage",
    name: str,
    identities: dict[str, dict[str, Any]],
    resume: bool,
    where: str,
) -> None:
    """Refuse to mix two tunings before anything is written.

    Parameters
    ----------
    storage : BaseStorage
    name : str
        Of the tuning.
    identities : dict
        What each of its loads must have in common with what is there, by the load's name. Other
        loads may be there beside them.
    resume : bool
    where : str
        The storage, for messages.

    Raises
    ------
    UsageError
        A study of that name is there and `resume` is not asked for, or it was started with another
        space, model, prompts or batch (each difference is named), or there is nothing to resume.
    """
    found = [s for s in storage.get_all_studies() if s.study_name.startswith(f"{name}/")]
    if not found:
        if resume:
            raise UsageError(f"nothing to resume: {where} holds no study {name!r}")
        return
    for study in found:
        stored = study.user_attrs.get(IDENTITY)
        if stored is None:
            raise UsageError(
                f"{where} holds a study {study.study_name!r} that is not of specbench tune; "
                "give another --study"
            )
        load = study.study_name.removeprefix(f"{name}/").rpartition("/")[0]
        if ("" in identities) != (load == ""):
            there = f"of the load {load}" if load else "of one load"
            raise UsageError(
                f"{where} holds a study {name!r} {there}, started with other --batch-size or "
                "--context-len; repeat them, or give another --study"
            )
        if load not in identities:
            continue
        unlike = differences(stored, json.loads(json.dumps(identities[load])))
        if unlike:
            raise UsageError(
                f"{where} holds a study {name!r} that was started differently "
                f"({'; '.join(unlike)}); repeat its options, or give another --study"
            )
    if not resume:
        raise UsageError(
            f"{where} already holds the study {name!r}; --resume continues it, "
            "--study names another one"
        )


def load_study(name: str, load: str) -> str:
    """The prefix of a load's studies; that of an only load is the tuning's name."""
    return f"{name}/{load}" if load else name


def stored_identity(storage: "BaseStorage", name: str) -> dict[str, Any] | None:
    """What `check_studies` would compare with; None where there is no such study."""
    for study in storage.get_all_studies():
        if study.study_name.startswith(f"{name}/") and IDENTITY in study.user_attrs:
            return dict(study.user_attrs[IDENTITY])
    return None


def open_study(
    storage: "BaseStorage",
    name: str,
    direction: Literal["minimize", "maximize"],
    identity: dict[str, Any],
) -> optuna.Study:
    """The study of one step, made where it is missing."""
    try:
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
    except DuplicatedStudyError:
        return optuna.load_study(storage=storage, study_name=name)
    study.set_user_attr(IDENTITY, identity)
    return study


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
