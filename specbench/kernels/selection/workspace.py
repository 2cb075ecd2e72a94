"""How the selection's work is cut, and the memory for what may be chosen."""

import math
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Launch:
    """How the work is cut; any choice gives the same result up to ties.

    Attributes
    ----------
    warps : int
        Warps of a program, which works on one list of scores at a time.
    depth : int
        Scores of a thread in one step, a power of two. As many more are on their way meanwhile.
    kept : int
        Candidates of a thread that stay in registers during the search, a power of two. Further
        ones are read again in each of its steps.
    samples : int
        Scores that are looked at for the threshold, a power of two, at least 32 a warp.
    run : int
        Neighbours that are sampled together, a power of two. Long runs make fewer memory sectors,
        but neighbours resemble each other, which makes a sample worth less than its size.
    margin : float
        By how many standard deviations of the rank in an independent sample the threshold is
        lowered: fewer make the slow path more likely, more make more candidates.
    programs_per_sm : int
        Programs that fit a multiprocessor at a time; together they take the lists in turn.
    registers : int
        Most registers of a thread, so that `programs_per_sm` programs fit.
    """

    warps: int
    depth: int
    kept: int
    samples: int
    run: int
    margin: float
    programs_per_sm: int
    registers: int

    @property
    def columns(self) -> int:
        """Threads of a program."""
        return 32 * self.warps


# Swept on an H200. A list's candidates, half as many again as are kept of it, have to fit the
# registers of a program with room for the fullest column. Where there are more lists than
# multiprocessors, programs hide each other's waiting: the smaller, the more of them. Else a list
# gets many threads.
MANY = Launch(
    warps=8,
    depth=32,
    kept=64,
    samples=4096,
    run=8,
    margin=8,
    programs_per_sm=2,
    registers=128,
)
SHORT = replace(MANY, warps=4, kept=32, programs_per_sm=4)
FEW = replace(MANY, warps=16, kept=32, programs_per_sm=1)
FEW_SHORT = replace(FEW, depth=16, kept=16)
# of scores of 16 bits, a step's as many bytes
MANY_NARROW = replace(FEW, depth=16, margin=6)
SHORT_NARROW = replace(SHORT, depth=16)
# most that is kept of a list for the short ones
_SHORT_WIDTH, _FEW_SHORT_WIDTH = 1_500, 2_500
# candidates are spread over columns, of which the fullest counts
_SPREAD = 2
# where the interpreter stands in for a device
_INTERPRETED_SMS = 4


def default_launch(rows: int, length: int, width: int, sms: int, item: int = 4) -> Launch:
    """The launch for `rows` lists of `length` of which `width` are kept, on `sms` processors.

    A score has `item` bytes.
    """
    if rows > sms:
        # lists that go without a sample are candidates as a whole
        short = width <= _SHORT_WIDTH and length > 2 * SHORT.samples
        if item <= 2:
            return SHORT_NARROW if short else MANY_NARROW
        return SHORT if short else MANY
    return FEW_SHORT if width <= _FEW_SHORT_WIDTH else FEW


class SelectionWorkspace:
    """Scratch memory for calls that follow one another on a stream.

    Nothing in it has to be cleared between calls.

    Parameters
    ----------
    rows : int
        Most lists of a call: layers times requests times sets.
    length, width : int
        Most scores of a list, and most that are kept of one.
    device
    launch : Launch, optional
        Overrides the default.
    dtype : torch.dtype, optional
        Of the scores; chooses the launch.

    Attributes
    ----------
    launch : Launch
    programs : int
        Programs of the grid.
    capacity : int
        Candidates that a column can hold.
    found : Tensor
        int64 `[programs, capacity, columns]`, candidates as value and index.
    failed : Tensor
        int32 `[rows]`, lists of the current call that are left to the slow path.
    queue : Tensor
        int32 `[3]`: lists that were begun, that failed, and whose slow path was begun; zeros
        between calls.
    """

    def __init__(
        self,
        rows: int,
        length: int,
        width: int,
        device: torch.device | str,
        launch: Launch | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        sms = _INTERPRETED_SMS
        if torch.device(device).type == "cuda":
            sms = torch.cuda.get_device_properties(device).multi_processor_count
        if launch is None:
            launch = default_launch(rows, length, width, sms, dtype.itemsize)
        self.launch = launch
        self._limits = rows, length, width
        self.programs = max(1, min(rows, sms * launch.programs_per_sm))
        self.capacity = _capacity(length, width, launch)
        candidates = self.programs * self.capacity * launch.columns
        self.found = torch.empty(candidates, dtype=torch.int64, device=device)
        self.failed = torch.empty(rows, dtype=torch.int32, device=device)
        self.queue = torch.zeros(3, dtype=torch.int32, device=device)

    def check(self, rows: int, length: int, width: int) -> None:
        """Raise ValueError where a call needs a larger workspace."""
        needed = rows, length, width
        if any(need > limit for need, limit in zip(needed, self._limits, strict=True)):
            raise ValueError(
                "the workspace is for at most {} lists of {} scores of which {} are kept".format(
                    *self._limits
                )
                + ", the call has {}, {} and {}".format(*needed)
            )


def _capacity(length: int, width: int, launch: Launch) -> int:
    """Candidates of a column: those that are kept, twice the margin, and room for one more step."""
    share = length / launch.samples
    # the margin's largest value over all lists that are no longer and keep no more
    margin = launch.margin * (math.sqrt(min(width, length / 2) * share) + share)
    expected = _SPREAD * (width + 2 * margin) / launch.columns
    most = -(-length // launch.columns)
    # short lists are candidates as a whole
    least = 2 * launch.samples // launch.columns
    return launch.depth + min(most, max(least, math.ceil(expected)))
