"""Whether a plan fits the memory, said in bytes before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import OutOfMemoryError

if TYPE_CHECKING:
    import torch

    from specbench.engine.model_config import ModelConfig
    from specbench.methods.base import EngineMethod, Method

_RESERVE = 0.05
_CUDA_BYTES = 2**31  # kernels' workspaces, libraries, graphs


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a run needs.

    Attributes
    ----------
    weights, kv_cache, method, working : int
        Working memory is the largest forward's (logits, hidden states, attention scores) and the
        requests' tokens.
    """

    weights: int
    kv_cache: int
    method: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_cache + self.method + self.working

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "KV cache": self.kv_cache,
            "method": self.method,
            "working": self.working,
        }
        split = ", ".join(f"{name} {gib(size)}" for name, size in parts.items())
        return f"{gib(self.total)} ({split})"


def plan_memory(
    model: "ModelConfig",
    dtype: "torch.dtype",
    methods: "list[EngineMethod]",
    *,
    rows: int,
    max_len: int,
    prefill_chunk: int,
    sampled: bool,
    triton: bool = False,
    kept_tokens: int = 0,
) -> MemoryPlan:
    """What a run of `rows` requests of `max_len` tokens needs, all its methods together.

    `triton` says that the engine runs on the Triton kernels, which hold no attention weights;
    `kept_tokens` is the room for prompts that wait for their next pass.
    """
    from specbench.engine.kv_cache import PAGE_SIZE, pages_for

    waiting = pages_for(kept_tokens)
    pages = rows * pages_for(max_len + spare_entries(methods)) + waiting
    slots = (pages + 1) * PAGE_SIZE
    verified = rows * (max(max(method.gamma, method.nodes) for method in methods) + 1)
    # sampling holds logits, p, q, their sorted copies and order, and a float64 cumulative sum
    logits = verified * model.vocab_size * 4 * (10 if sampled else 2)
    chunk = min(prefill_chunk, max_len)
    hidden = 2 * model.intermediate_size + 6 * model.hidden_size
    attention = 3 * model.num_heads * chunk * max_len * 4
    if triton:
        # one prompt's keys and values in order; weights of two rows of each request; the libraries
        gathered = 2 * max_len * model.num_kv_heads * model.head_dim * dtype.itemsize
        attention = gathered + rows * model.num_heads * 2 * max_len * 2 + _CUDA_BYTES
    history = rows * (max_len + 1) * 8
    return MemoryPlan(
        weights=model.weight_bytes(dtype),
        kv_cache=slots * model.kv_bytes_per_token(dtype),
        method=sum(
            m.memory_bytes(model, rows, max_len, dtype) + waiting * m.page_bytes(model, dtype)
            for m in methods
        ),
        working=logits + max(chunk, verified) * hidden * 4 + attention + history,
    )


def spare_entries(methods: "Sequence[Method]") -> int:
    """Cache entries that a request needs beyond its tokens: where the nodes of a tree stand."""
    from specbench.methods.base import EngineMethod

    return max((m.nodes for m in methods if isinstance(m, EngineMethod)), default=0)


def available_bytes(device: str) -> int | None:
    """Free memory of the device; None where the system does not say."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_container_bytes()])


def device_bytes(device: str) -> int | None:
    """All memory of a CUDA device; None on the CPU."""
    if device != "cuda":
        return None
    import torch

    return torch.cuda.mem_get_info()[1]


def _container_bytes() -> list[int]:
    """What a container's limit (cgroup v2) leaves, if there is one."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not (limit.is_file() and used.is_file()) or limit.read_text().strip() == "max":
        return []
    return [int(limit.read_text()) - int(used.read_text())]


def check_memory(plan: MemoryPlan, available: int | None, rows: int, max_len: int) -> None:
    """Refuse a plan that does not fit, a small reserve kept.

    Raises
    ------
    OutOfMemoryError
        With the bytes needed and free.
    """
    if available is not None and plan.total > available * (1 - _RESERVE):
        raise OutOfMemoryError(
            f"a batch of {rows} x {max_len:,} tokens needs {plan}, {gib(available)} are free: "
            "lower --batch-size or --context-len, or choose a smaller --model"
        )


def gib(size: int) -> str:
    """Bytes as GiB, or MiB below one."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


class PeakMemory:
    """The most memory that a pass took: on CUDA the allocator's, on Linux the process's."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._resettable = True

    def reset(self) -> None:
        """Start anew."""
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            return
        try:
            # 5 resets the high-water mark of the resident set (proc(5))
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._resettable = False

    def read(self) -> int | None:
        """Bytes since `reset`; None where the system does not say."""
        if self.device == "cuda":
            import torch

            return torch.cuda.max_memory_allocated()
        if not self._resettable:
            return None
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
