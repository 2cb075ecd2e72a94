"""FlashAttention, where it is installed: what our kernels are measured against."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Peer:
    """A FlashAttention that reads paged KV.

    Attributes
    ----------
    name : str
        Such as ``FlashAttention-3 (vllm 0.25.1)``.
    attend : callable
        ``(q, k_cache, v_cache, block_table, kv_lens, max_len, causal)`` to the output: q
        `[R, Q, H, D]`, caches `[pages, page_size, Hkv, D]`, block table int32 `[R, P]`, lengths
        int32 `[R]`. The call does not wait for the device.
    """

    name: str
    attend: "Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, bool], Tensor]"


def find_peer() -> Peer | None:
    """FlashAttention-3 of its own package, else the one inside vLLM; None where there is neither.

    FlashAttention-2 is no peer: it reads pages of 256 tokens and more only.
    """
    if find_spec("flash_attn_interface") is not None:
        return _own_package()
    if find_spec("vllm") is not None and find_spec("vllm.vllm_flash_attn") is not None:
        return _inside_vllm()
    return None


def _own_package() -> Peer:
    module = import_module("flash_attn_interface")

    def attend(
        q: "Tensor",
        k_cache: "Tensor",
        v_cache: "Tensor",
        block_table: "Tensor",
        kv_lens: "Tensor",
        max_len: int,
        causal: bool,
    ) -> "Tensor":
        out: Tensor = module.flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            cache_seqlens=kv_lens,
            page_table=block_table,
            causal=causal,
        )
        return out

    return Peer(f"FlashAttention-3 ({_version('flash-attn-3', 'flash-attn')})", attend)


def _inside_vllm() -> Peer:
    module = import_module("vllm.vllm_flash_attn")

    def attend(
        q: "Tensor",
        k_cache: "Tensor",
        v_cache: "Tensor",
        block_table: "Tensor",
        kv_lens: "Tensor",
        max_len: int,
        causal: bool,
    ) -> "Tensor":
        rows, width = q.shape[:2]
        starts = _starts(rows, width)  # made before it is timed
        out: Tensor = module.flash_attn_varlen_func(
            q.flatten(0, 1),
            k_cache,
            v_cache,
            max_seqlen_q=width,
            cu_seqlens_q=starts,
            max_seqlen_k=max_len,
            seqused_k=kv_lens,
            block_table=block_table,
            causal=causal,
            fa_version=3,
        )
        return out.view_as(q)

    return Peer(f"FlashAttention-3 (vllm {_version('vllm')})", attend)


@cache
def _starts(rows: int, width: int) -> "Tensor":
    import torch

    return torch.arange(0, (rows + 1) * width, width, dtype=torch.int32, device="cuda")


def _version(*distributions: str) -> str:
    from specbench.bench.environment import version

    return version(*distributions) or "unknown version"
