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
