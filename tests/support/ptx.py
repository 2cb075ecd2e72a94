"""Reads the assembly of compiled kernels."""

import re

# loads, stores and atomics of global memory; to fetch into L2 alters nothing
_ACCESS = r"(?:ld|st|atom|red|cp\.async(?!\.bulk\.prefetch))\.[\w.]*\bglobal[\w.]*"


def before_wait(ptx: str) -> list[str]:
    """What a dependent kernel does before it waits: global memory, and letting the next one in.

    Names of instructions, in the order of the text.
    """
    early, wait, _ = ptx.partition("griddepcontrol.wait")
    assert wait, "no wait"
    return re.findall(rf"(?<![\w.])(?:{_ACCESS}|griddepcontrol\.[\w.]+)", early)


def loops_before_wait(ptx: str) -> bool:
    """Whether a dependent kernel may branch backwards before it waits."""
    early, wait, _ = ptx.partition("griddepcontrol.wait")
    assert wait, "no wait"
    seen: set[str] = set()
    for label, target in re.findall(r"^(\$L\w+):|\bbra(?:\.uni)?\s+(\$L\w+)", early, re.MULTILINE):
        if target in seen:
            return True
        if label:
            seen.add(label)
    return False


def contracted(ptx: str) -> int:
    """Products that are added, unrounded, to what another thread has (triton-lang/triton#7264)."""
    shuffled, found = set(), 0
    for line in ptx.splitlines():
        if there := re.search(r"\bshfl\.sync\.\S+\s+(%r\d+)", line):
            shuffled.add(there[1])
        elif (moved := re.match(r"\s*mov\.b32\s+(%\w+), (%r\d+);", line)) and moved[2] in shuffled:
            shuffled.add(moved[1])
        elif added := re.match(r"\s*fma\.rn\.f32\s+\S+, \S+, \S+, (%\w+);", line):
            found += added[1] in shuffled
    return found
