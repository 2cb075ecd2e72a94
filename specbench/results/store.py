"""A run's folder: `run.json` and append-only JSONL files that survive a killed process."""

import errno
import os
from collections.abc import Container, Hashable
from pathlib import Path
from types import TracebackType
from typing import Any

from specbench.errors import DataError, UsageError
from specbench.results.folder import acquire, refuse_content, refuse_unwritable, write_run
from specbench.results.identity import differences, identity
from specbench.results.reading import (
    ARMS,
    LOSSLESS,
    OVERHEAD,
    REQUESTS,
    RUN,
    SCORES,
    mend_tail,
    read_arms,
    read_lossless,
    read_requests,
    read_run,
    read_scores,
)
from specbench.results.records import (
    ArmRecord,
    LosslessRecord,
    OverheadRecord,
    Record,
    RequestRecord,
    RunRecord,
    ScoreRecord,
    Status,
)


class RunStore:
    """The one writer of a run's folder; made by `create` or `resume`, closed like a file.

    Attributes
    ----------
    folder : Path
    run : RunRecord
        What `run.json` holds.
    segment : int
        The number of this process among those that wrote to the folder.
    """

    def __init__(self, folder: Path, lock: int, run: RunRecord) -> None:
        self.folder = folder
        self.run = run
        self._lock = lock
        self._requests = {record.key: record for record in read_requests(folder)}
        self._arms = {record_key(record): record for record in read_arms(folder)}
        self._lossless = {record_key(record): record for record in read_lossless(folder)}
        self._scores = {record_key(record): record for record in read_scores(folder)}
        self.segment = self.next_segment()

    @staticmethod
    def check_free(folder: Path) -> None:
        """Refuse a folder that `create` would refuse, before work is spent on the run.

        Raises
        ------
        UsageError
            The folder is a file, holds something already, or cannot be written to.
        """
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"the output {folder} is a file; give a folder with --output")
        refuse_content(folder)
        refuse_unwritable(folder)

    @classmethod
    def create(cls, folder: Path, run: RunRecord) -> "RunStore":
        """Start a run in a new or empty folder and write its `run.json`.

        Raises
        ------
        UsageError
            The folder holds something already, or another process is writing to it.
        """
        cls.check_free(folder)
        lock = acquire(folder)
        try:
            refuse_content(folder)
            write_run(folder, run)
            return cls(folder, lock, run)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def resume(cls, folder: Path, run: RunRecord) -> "RunStore":
        """Continue the run in `folder`; a last line that the crash cut short is removed.

        Raises
        ------
        UsageError
            Nothing to resume, another process is writing, or `run` differs from the one on disk in
            configuration, model, prompts or arms: the message names each difference.
        DataError
            A record that cannot be read.
        """
        if not (folder / RUN).is_file():
            raise UsageError(f"nothing to resume: {folder} holds no {RUN}; leave out --resume")
        lock = acquire(folder)
        try:
            stored = read_run(folder)
            found = differences(identity(stored), identity(run))
            if found:
                raise UsageError(
                    f"cannot resume {folder}: it was started differently ({'; '.join(found)}); "
                    "repeat the original options, or start anew with another --output"
                )
            for name in (REQUESTS, ARMS, LOSSLESS, SCORES, OVERHEAD):
                mend_tail(folder / name)
            return cls(folder, lock, stored)
        except BaseException:
            os.close(lock)
            raise

    def append_request(self, record: RequestRecord) -> None:
        """Write one request's record and wait until it is on disk."""
        self._refuse_known(record.key, self._requests, REQUESTS)
        self._append(REQUESTS, record)
        self._requests[record.key] = record

    def append_arm(self, record: ArmRecord) -> None:
        """Write how a pass ended. A failed pass may be written again after a retry."""
        key = record_key(record)
        passed = {key for key, known in self._arms.items() if known.status is Status.PASSED}
        self._refuse_known(key, passed, ARMS)
        self._append(ARMS, record)
        self._arms[key] = record

    def append_lossless(self, record: LosslessRecord) -> None:
        """Write the losslessness verdict of one request."""
        key = record_key(record)
        self._refuse_known(key, self._lossless, LOSSLESS)
        self._append(LOSSLESS, record)
        self._lossless[key] = record

    def append_score(self, record: ScoreRecord) -> None:
        """Write how right one output is."""
        key = record_key(record)
        self._refuse_known(key, self._scores, SCORES)
        self._append(SCORES, record)
        self._scores[key] = record

    def append_overhead(self, record: OverheadRecord) -> None:
        """Write the time split of an arm's iteration; a later one replaces it."""
        self._append(OVERHEAD, record)

    def load_requests(self) -> list[RequestRecord]:
        """All requests on record, in the order in which they were written."""
        return list(self._requests.values())

    def load_arms(self) -> list[ArmRecord]:
        """The latest record of each pass."""
        return list(self._arms.values())

    def load_lossless(self) -> list[LosslessRecord]:
        """All verdicts on record."""
        return list(self._lossless.values())

    def load_scores(self) -> list[ScoreRecord]:
        """All scores on record."""
        return list(self._scores.values())

    def next_segment(self) -> int:
        """One more than the last segment on record, 0 where there is none."""
        return max((r.times.segment for r in self._requests.values()), default=-1) + 1

    def close(self) -> None:
        """Let other processes write to the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_known(self, key: Hashable, known: Container[Any], name: str) -> None:
        if key in known:
            raise DataError(f"{self.folder / name} already holds a record of {key}")

    def _append(self, name: str, record: Record) -> None:
        if self._lock < 0:
            raise ValueError(f"the store of {self.folder} is closed")
        path = self.folder / name
        line = record.model_dump_json().encode() + b"\n"
        try:
            with path.open("ab", buffering=0) as file:
                start = file.tell()
                try:
                    if file.write(line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(start)
                    raise
        except OSError as error:
            raise DataError(
                f"cannot write to {path}: {error.strerror}; what was measured before is "
                "on record, and --resume continues"
            ) from error


def record_key(
    record: ArmRecord | LosslessRecord | ScoreRecord,
) -> tuple[str, str, int, int | None]:
    """What identifies a pass (arm, dataset, repeat), or a verdict or score (with the index)."""
    index = None if isinstance(record, ArmRecord) else record.index
    return record.arm, record.dataset, record.repeat, index
