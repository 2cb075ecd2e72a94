"""Tree attention in Triton: one pass of paged attention, the tree's mask on its last tiles."""

import torch
from torch import Tensor

from specbench.kernels.paged_attention.workspace import PagedAttention


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    mask: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`reference.tree_attention` with a workspace made for this call.

    An iteration makes a `PagedAttention` once and calls it with `tree_mask`.
    """
    rows, queries, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    max_len = block_table.shape[1] * page_size
    attention = PagedAttention(rows, queries, heads, kv_heads, head_dim, max_len, q.dtype, q.device)
    lse = torch.empty(q.shape[:3], device=q.device)
    out = attention(
        q, k_cache, v_cache, block_table, kv_lens, q_lens, scale, lse=lse, tree_mask=mask
    )
    return out, lse
