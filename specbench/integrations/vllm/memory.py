"""What the drafter holds on the device, said before it is allocated and refused where absurd."""

import torch

from specbench.bench.memory import gib
from specbench.engine.kv_cache import PAGE_SIZE, pages_for
from specbench.engine.model_config import ModelConfig
from specbench.errors import UsageError

SCORE_BYTES = 256 * 2**20
"""Scores of as many layers at a time as this holds, of one at least."""

_SHARE = 0.25


def drafter_bytes(
    shape: ModelConfig, rows: int, gamma: int, max_len: int, width: int, dtype: torch.dtype
) -> dict[str, int]:
    """Bytes of the drafter's large buffers, by what they are for.

    Parameters
    ----------
    shape : ModelConfig
        This rank's.
    rows, gamma, max_len : int
        Most requests of a batch, drafts of a round, tokens of a request.
    width : int
        Most entries that a set holds.
    dtype : torch.dtype
        Of the model.
    """
    layers, heads, kv_heads, dim = (
        shape.num_layers,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
    )
    size = dtype.itemsize
    scores = 4 * rows * kv_heads * max_len
    return {
        "the verification's queries": layers * rows * 2 * heads * dim * size,
        "the drafts' keys and values": (rows * pages_for(2 * gamma) + 1)
        * PAGE_SIZE
        * shape.kv_bytes_per_token(dtype),
        "the sets": 4 * layers * rows * kv_heads * width,
        "scores": max(scores, min(SCORE_BYTES, layers * scores)),
        "weights of one layer": rows * 2 * heads * max_len * size,
        "RoPE tables": 2 * max_len * dim * 4,
    }


def check_memory(parts: dict[str, int], device: torch.device) -> int:
    """The sum of `parts`.

    Raises
    ------
    UsageError
        It is more than a quarter of a CUDA device's memory.
    """
    total = sum(parts.values())
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        if total > _SHARE * memory:
            most = sorted(parts.items(), key=lambda item: -item[1])[:3]
            detail = ", ".join(f"{name} {gib(size)}" for name, size in most)
            raise UsageError(
                f"specbench inside vLLM: the drafter would hold {gib(total)} of {gib(memory)} "
                f"({detail}): lower --max-num-seqs or --max-model-len"
            )
    return total
