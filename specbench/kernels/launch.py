"""What the Triton kernels share: dependent launches, programs that meet, and the device's width."""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Scratch:
    """Memory in which programs that share one sum meet.

    Attributes
    ----------
    partial : Tensor
        float32 `[floats]`, overwritten by every launch.
    counters : Tensor
        int32 `[tiles]`, zeros before and after every launch.

    Notes
    -----
    Launches of one stream may share it, those of two streams may not.
    """

    partial: Tensor
    counters: Tensor

    @classmethod
    def make(cls, device: torch.device | str, floats: int = 2**21, tiles: int = 2**12) -> "Scratch":
        """Scratch of the given size; the defaults do for a model of 0.5B and 64 rows."""
        return cls(
            torch.empty(floats, dtype=torch.float32, device=device),
            torch.zeros(tiles, dtype=torch.int32, device=device),
        )

    def check(self, floats: int, tiles: int) -> None:
        """Raise ValueError where a launch needs more than there is."""
        if self.partial.numel() < floats or self.counters.numel() < tiles:
            raise ValueError(
                f"a launch needs scratch for {floats:,} floats and {tiles:,} tiles, there is "
                f"room for {self.partial.numel():,} and {self.counters.numel():,}"
            )


@lru_cache
def multiprocessors(device: torch.device | str) -> int:
    """Streaming multiprocessors of a CUDA device; 1 for a CPU, where programs run in turn."""
    if torch.device(device).type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def overlaps(device: torch.device | str) -> bool:
    """Whether a kernel can start while the one before it ends: on Hopper and later."""
    if triton.knobs.runtime.interpret:
        return False
    return torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def dependent(wanted: bool, device: torch.device | str) -> dict[str, bool]:
    """Options of a launch that is to be programmatic dependent where the device has it."""
    on = wanted and overlaps(device)
    return {"PDL": on, "launch_pdl": on}


# of the 50 MB of an H100's or H200's L2; what is fetched earlier may be gone when it is read
MOST_AHEAD = 20 * 2**20
# programs beside those that compute, which do nothing but fetch
FETCHERS = 64
# bytes of one instruction
FETCHED = tl.constexpr(1024)


def fetchable(x: Tensor) -> bool:
    """Whether each row of `x` begins at a multiple of the 16 bytes that `prefetch` needs."""
    steps = [x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:-1])]
    return all(step % 16 == 0 for step in steps)


def to_fetch(weight: Tensor | None, device: torch.device | str) -> tuple[Tensor | None, int]:
    """A weight that a kernel is to fetch into L2 for one that comes soon, and its parts.

    None where there is nothing to gain: of what L2 does not hold, or without dependent launches.
    """
    if weight is None or weight.nbytes > MOST_AHEAD or not overlaps(device):
        return None, 0
    # products take strided rows too, whose gaps are not to be fetched
    if not (fetchable(weight) and weight.is_contiguous()):
        return None, 0
    return weight, weight.nbytes // FETCHED.value


def check_dtype(x: Tensor) -> None:
    """Raise ValueError where float32 sums would lose what `x` holds."""
    if not x.is_floating_point() or x.dtype.itemsize > 4:
        raise ValueError(f"the Triton kernels compute in float32, {x.dtype} needs the reference")


def row_tile(rows: int) -> int:
    """Rows of a matrix tile: a power of two, at least the 16 of a tensor core's instruction."""
    return max(16, triton.next_power_of_2(rows))


@triton.jit
def release_next(PDL: tl.constexpr):
    """Let the next kernel be scheduled; it waits for this one's results by itself.

    Short kernels call it before their own wait: the next one may then start while those before this
    one still run. Products and attention call it behind theirs, which settles all that was written
    before them.

    Called when little is left to do: programs that come early take what room they find, and the
    multiprocessors' shares of the next kernel are uneven then.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait until the kernels before this one are done. Nothing of theirs may be touched earlier."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointers, size):
    """Fetch `size` bytes from each of `pointers` on into L2; all of them must be valid.

    Pointers and size are multiples of 16. One instruction each, by the copy engine, for which the
    threads of a warp take turns. Where there are more threads than pointers, several have the same
    one: each set of them issues its part, so that nothing is fetched twice and turns are few.
    """
    NUMBER: tl.constexpr = pointers.shape[0]
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred own;
        .reg .b32 bits, thread, copies, copy, place;
        bfind.u32 bits, $3;
        mov.u32 thread, %tid.x;
        mov.u32 copies, %ntid.x;
        shr.u32 copies, copies, bits;
        max.u32 copies, copies, 1;
        shr.u32 copy, thread, bits;
        bfi.b32 place, thread, 0, 0, bits;
        mul.lo.u32 place, place, copies;
        shr.u32 place, place, bits;
        setp.eq.u32 own, place, copy;
        @own cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r,r",
        [pointers, size, tl.full([NUMBER], NUMBER, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def fetch_ahead(weight, program, programs, PARTS: tl.constexpr):
    """The share of one of `programs` programs in fetching what `to_fetch` gave."""
    if weight is not None:
        EACH: tl.constexpr = FETCHED // (weight.dtype.element_ty.primitive_bitwidth // 8)
        BLOCK: tl.constexpr = 32
        for block in range(program, tl.cdiv(PARTS, BLOCK), programs):
            part = tl.minimum(block * BLOCK + tl.arange(0, BLOCK), PARTS - 1)
            prefetch(weight + part.to(tl.int64) * EACH, tl.full([BLOCK], FETCHED, tl.int32))


@triton.jit
def fetch_share(weight, PARTS: tl.constexpr):
    """The same of each program of a launch that computes too."""
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    fetch_ahead(weight, program, tl.num_programs(0) * tl.num_programs(1), PARTS)


@triton.jit
def last_to_arrive(counter, programs):
    """Whether all `programs` have stored their part, so that the last of them may read it."""
    # the atomic is one thread's: the stores of the others have to come before it
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(counter, 0)
    return last
