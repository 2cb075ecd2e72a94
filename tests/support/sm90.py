"""Compile Triton kernels for an H100 or H200 on a machine that has none."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from specbench.kernels import launch


@dataclass(frozen=True)
class Compiled:
    """One kernel as the assembler reports it: registers a thread, bytes on the stack and shared."""

    name: str
    registers: int
    stack: int
    shared: int
    ptx: str


class _NoDevice:
    """Stands in for the driver: compilation asks it for little more than the target."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(call: Callable[[], object]) -> list[Compiled]:
    """Run `call` with every launch replaced by a compilation.

    The process must not interpret: ``TRITON_INTERPRET=0`` before triton is imported.
    """
    compiled: list[Compiled] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        compiled.append(_describe(self.__name__, kernel))

    driver.set_active(_NoDevice())
    launch.overlaps = lambda _: True  # type: ignore[assignment]
    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = original
    return compiled


def _describe(name: str, kernel: Any) -> Compiled:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found is not None, report
    registers, stack = map(int, found.groups())
    return Compiled(name, registers, stack, kernel.metadata.shared, kernel.asm["ptx"])
