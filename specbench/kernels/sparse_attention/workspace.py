"""How the sparse kernel's work is cut, and the memory that its splits need."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Launch:
    """How the work is cut; any choice gives the same result up to rounding.

    Attributes
    ----------
    tile : int
        Entries of one step of a program, a power of two from 16.
    warps : int
        Warps of a program.
    stages : int
        Depth of the pipeline.
    programs_per_sm : int
        Lists are split until every multiprocessor has about this many programs. More than fit at
        a time make a second wave.
    tiles_per_split : int
        A split gets no fewer tiles.
    held : bool
        Read a program's first tile into registers before the wait, where its entries are settled;
        the tail has a program of its own then.
    early : int
        Tiles of a program that are fetched into L2 before the wait, where their entries are
        settled: 0 or a power of two. More than fit in L2 together are gone when they are read.
    """

    tile: int
    warps: int
    stages: int
    programs_per_sm: int
    tiles_per_split: int
    held: bool = False
    early: int = 1

    def merged(self, splits: int, elements: int) -> int:
        """How many of `splits` parts, of `elements` each, are in registers at a time.

        All of them where a thread has 64 registers of them at most; else they come in a loop, whose
        own values leave half of that where three programs of four warps are to fit.
        """
        most = max(1, 64 * 32 * self.warps // elements)
        if splits <= most:
            return splits
        return max(1, most if self.warps < 4 else most // 2)


MANY = 2**31
# by the bytes of one key, at most, and by the lists of a call, at most: swept on an H200 up to 256
# bytes, beyond that starting points
LAUNCHES = {
    (128, 32): Launch(tile=32, warps=1, stages=4, programs_per_sm=3, tiles_per_split=2),
    (128, MANY): Launch(tile=128, warps=4, stages=2, programs_per_sm=4, tiles_per_split=1),
    (256, MANY): Launch(tile=64, warps=2, stages=3, programs_per_sm=3, tiles_per_split=2),
    (512, MANY): Launch(tile=64, warps=4, stages=2, programs_per_sm=2, tiles_per_split=2),
    (1024, MANY): Launch(tile=16, warps=4, stages=3, programs_per_sm=2, tiles_per_split=2),
}
# before those, where lists are settled; not swept
SETTLED_LAUNCHES = {
    (128, 32): Launch(tile=128, warps=4, stages=2, programs_per_sm=3, tiles_per_split=1, held=True),
}
# where the interpreter stands in for a device
_INTERPRETED_SMS = 4


def default_launch(dim: int, dtype: torch.dtype, lists: int = 1, settled: bool = False) -> Launch:
    """The launch for heads of this width, and `lists` of entries: requests times KV heads.

    `settled` is as for `triton.sparse_attention`.

    Raises
    ------
    ValueError
        Wider heads than the table has.
    """
    size = max(16, 1 << (dim - 1).bit_length()) * dtype.itemsize
    tables = ([SETTLED_LAUNCHES] if settled else []) + [LAUNCHES]
    for (widest, most), launch in (row for table in tables for row in table.items()):
        if size <= widest and lists <= most:
            return launch
    raise ValueError(f"heads of {dim} {dtype} exceed {max(LAUNCHES)[0]} bytes: pass a launch")


class SparseAttentionWorkspace:
    """Scratch memory for calls that follow one another on a stream.

    Nothing in it has to be cleared between calls.

    Parameters
    ----------
    requests : int
        Most requests of a call.
    heads, kv_heads, dim : int
        Of the model.
    dtype : torch.dtype
        Of queries and caches; chooses the launch.
    device
    launch : Launch, optional
        Overrides the table.

    Attributes
    ----------
    launch, settled_launch : Launch
        For lists that are settled, the second.
    partial : Tensor
        fp32, what each split found, `[groups, splits, G, D]`.
    sums : Tensor
        fp32 `[groups, splits, G, 2]`: its greatest logit, and its weights' sum.
    arrivals : Tensor
        int32 `[groups]`, splits that are done; zero between calls.
    """

    def __init__(
        self,
        requests: int,
        heads: int,
        kv_heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        launch: Launch | None = None,
    ) -> None:
        lists = requests * kv_heads
        self.launch = launch or default_launch(dim, dtype, lists)
        self.settled_launch = launch or default_launch(dim, dtype, lists, True)
        sms = _INTERPRETED_SMS
        if torch.device(device).type == "cuda":
            sms = torch.cuda.get_device_properties(device).multi_processor_count
        self._sms = sms
        both = self.launch, self.settled_launch
        rows = max(sms * each.programs_per_sm for each in both) * (heads // kv_heads)
        self.partial = torch.empty(rows * dim, dtype=torch.float32, device=device)
        self.sums = torch.empty(rows * 2, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(requests * kv_heads, dtype=torch.int32, device=device)

    def cut(
        self, requests: int, heads: int, kv_heads: int, dim: int, entries: int, settled: bool
    ) -> tuple[Launch, int]:
        """The launch of a call of these shapes, and the splits of each list of `entries`.

        Raises
        ------
        ValueError
            The call needs a larger workspace.
        """
        launch = self.settled_launch if settled else self.launch
        groups = requests * kv_heads
        tiles = -(-entries // launch.tile)
        # where the first tile is held, the tail is a program's of its own
        wanted = tiles // launch.tiles_per_split + (settled and launch.held)
        programs = self._sms * launch.programs_per_sm
        splits = max(1, min(programs // max(1, groups), wanted))
        needed = groups * splits * (heads // kv_heads) * dim if splits > 1 else 0
        if groups > self.arrivals.numel() or needed > self.partial.numel():
            raise ValueError(
                f"the workspace holds {self.arrivals.numel()} lists and {self.partial.numel()} "
                f"partial sums; {requests} requests of {heads}/{kv_heads} heads of {dim} need "
                f"{groups} and {needed}"
            )
        return launch, splits
