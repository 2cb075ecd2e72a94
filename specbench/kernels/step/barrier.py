"""How the programs of a launch share a phase, and the barrier between phases, in two halves."""

import triton
import triton.language as tl


@triton.jit
def turns(program, units, PROGRAMS: tl.constexpr):
    """How many of `units` are a program's: that of its own number and every `PROGRAMS`-th on."""
    return (units - program + PROGRAMS - 1) // PROGRAMS


@triton.jit
def arrive(counter):
    """Say that this program's stores are done; how many arrivals were counted before."""
    # the atomic is one thread's: the stores of the others have to come before it
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, arrivals):
    """Wait until so many arrivals are counted: then what was stored before them can be read.

    One thread asks. What its acquire lets it see all threads see behind the barrier of the program:
    the load empties the first-level cache, which is the whole multiprocessor's.
    """
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred other, early;
        .reg .b32 thread, seen;
        mov.u32 thread, %tid.x;
        setp.ne.u32 other, thread, 0;
        @other bra DONE;
        AGAIN:
        ld.acquire.gpu.global.u32 seen, [$1];
        setp.lt.u32 early, seen, $2;
        @early bra AGAIN;
        DONE:
        bar.sync 0;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r",
        [counter, arrivals],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def afresh(program, INTERPRETED: tl.constexpr):
    """The same number, of which the compiler does not know that.

    What is computed from it would otherwise be computed once for all layers, and held in registers
    that the phases need.
    """
    if INTERPRETED:
        return program
    else:
        return tl.inline_asm_elementwise(
            "mov.u32 $0, $1;", "=r,r", [program], dtype=tl.int32, is_pure=False, pack=1
        )
