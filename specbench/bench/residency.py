"""Which engines hold memory at the same time, and how much of it each vLLM gets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.bench.memory import MemoryPlan, gib
from specbench.errors import OutOfMemoryError
from specbench.methods.vllm.method import Vllm

if TYPE_CHECKING:
    import torch

    from specbench.bench.arms import Arm
    from specbench.bench.workload import Workload
    from specbench.engine.model_config import ModelConfig
    from specbench.methods.base import Method

HEADROOM_TOKENS = 64
"""Tokens that vLLM may hold beyond the longest request, for what it schedules ahead."""

_BLOCK = 128  # tokens: a multiple of every block size that vLLM chooses for these models
_BATCHED_TOKENS = 16_384  # of a prefill step, vLLM's default on large devices
_CUDA_BYTES = 4 * 2**30  # context, libraries, graphs, workspaces
_CPU_BYTES = 3 * 2**29
_RESERVE = 0.05


@dataclass(frozen=True)
class VllmShare:
    """The memory of one vLLM.

    Attributes
    ----------
    kv_bytes : int
        Its KV cache.
    total : int
        All that it needs.
    group : int
        Prompts that the cache holds: what is filled, then decoded, at a time.
    utilization : float or None
        `total` as a share of the device; None on the CPU.
    """

    kv_bytes: int
    total: int
    group: int
    utilization: float | None


@dataclass(frozen=True)
class Residency:
    """Who is in memory when.

    Attributes
    ----------
    shares : dict
        For each arm of vLLM.
    exclusive : bool
        They do not fit together: one engine at a time, the others' memory given back.
    alone : bool
        There is one engine only.
    """

    shares: dict[str, VllmShare]
    exclusive: bool
    alone: bool = False

    def __str__(self) -> str:
        parts = [
            f"{name} {gib(s.total)} (KV cache {gib(s.kv_bytes)}, {s.group} prompts at a time)"
            for name, s in self.shares.items()
        ]
        if self.alone:
            return parts[0]
        turns = "in turns with the other engines, which do not fit beside it"
        return "; ".join(parts) + ", " + (turns if self.exclusive else "all in memory together")


def plan_residency(
    arms: "list[Arm]",
    workloads: "list[Workload]",
    model: "ModelConfig",
    dtype: "torch.dtype",
    *,
    rows: int,
    ours: MemoryPlan | None,
    free: int | None,
    device_bytes: int | None,
) -> Residency:
    """Give every vLLM arm its share.

    All prompts cached at a time where that fits, since a finished request's place is then taken by
    the next one, as in the other arms; else as many as decode together.

    Parameters
    ----------
    arms : list of Arm
        Those that vLLM runs.
    workloads : list of Workload
    model : ModelConfig
    dtype : torch.dtype
        Of weights and KV cache.
    rows : int
        Requests that decode together.
    ours : MemoryPlan, optional
        What specbench's own engine needs, if the run has it.
    free : int, optional
        Bytes that are free, if the system says.
    device_bytes : int, optional
        Memory of the CUDA device; None on the CPU.

    Raises
    ------
    OutOfMemoryError
        Not even one vLLM fits alone.
    """
    if not arms:
        return Residency({}, exclusive=False)
    own = ours.total if ours is not None else 0
    most = max(len(workload.requests) for workload in workloads)
    usable = None if free is None else free * (1 - _RESERVE)
    for exclusive in (False, True):
        for group in sorted({most, rows}, reverse=True):
            shares = {
                arm.name: _share(workloads, model, dtype, group, arm.method, device_bytes)
                for arm in arms
            }
            totals = [share.total for share in shares.values()]
            needed = max(own, *totals) if exclusive else own + sum(totals)
            if usable is None or needed <= usable:
                return Residency(shares, exclusive, alone=ours is None and len(shares) == 1)
    raise OutOfMemoryError(
        f"vLLM needs {gib(max(totals))} for {rows} prompts, {gib(free or 0)} are free: lower "
        "--batch-size or --context-len, or choose a smaller --model"
    )


def _share(
    workloads: "list[Workload]",
    model: "ModelConfig",
    dtype: "torch.dtype",
    group: int,
    method: "Method",
    device_bytes: int | None,
) -> VllmShare:
    def slots(length: int) -> int:
        return (-(-length // _BLOCK) + 1) * _BLOCK

    beyond = method.gamma + HEADROOM_TOKENS

    tokens = max(
        sum(
            sorted(
                (slots(len(r.token_ids) + r.max_new_tokens + beyond) for r in workload.requests),
                reverse=True,
            )[:group]
        )
        for workload in workloads
    )
    if isinstance(method, Vllm):  # it starts only where the longest request it allows would fit
        tokens = max(tokens, slots(method.max_model_len))
    kv_bytes = (tokens + _BLOCK) * model.kv_bytes_per_token(dtype)
    total = model.weight_bytes(dtype) + kv_bytes
    if device_bytes is None:
        return VllmShare(kv_bytes, total + _CPU_BYTES, group, None)
    width = 3 * model.intermediate_size + 6 * model.hidden_size
    total += _CUDA_BYTES + _BATCHED_TOKENS * width * dtype.itemsize
    return VllmShare(kv_bytes, total, group, min(0.97, total / device_bytes))
