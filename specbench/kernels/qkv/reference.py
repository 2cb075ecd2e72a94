"""From the fused projection to rotated queries and a written KV cache, in plain torch."""

import torch.nn.functional as F
from torch import Tensor

from specbench.kernels.linear.reference import project
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.paged_attention.reference import write_kv


def rope_write_kv(
    qkv: Tensor,
    bias: Tensor | None,
    qk_norm: Tensor | None,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
) -> Tensor:
    """Bias, norm of the heads, rotation, and the write of keys and values.

    Parameters
    ----------
    qkv : Tensor
        `[n, (H + 2 Hkv) D]`: heads of q, then k, then v.
    bias : Tensor or None
        `[(H + 2 Hkv) D]`, where the projection has not added it.
    qk_norm : Tensor or None
        `[H + Hkv, D]`, the norm weight of the query heads, then of the key heads.
    cos, signed_sin : Tensor
        float32 `[max_len, D]`, the first half of the sine negated.
    positions : Tensor
        `[n]`, below max_len.
    slots : Tensor
        int64 `[n]`, ``page * page_size + offset``; -1 writes nothing that is ever read.
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]`, written.
    eps : float
        Of the norm.

    Returns
    -------
    Tensor
        `[n, H, D]`, the rotated queries.
    """
    kv_heads, dim = k_cache.shape[2:]
    if bias is not None:
        qkv = qkv + bias
    heads = qkv.view(len(qkv), -1, dim)
    qk, v = heads[:, :-kv_heads], heads[:, -kv_heads:]
    if qk_norm is not None:
        qk = F.rms_norm(qk, (dim,), None, eps) * qk_norm
    cos, sin = cos[positions].unsqueeze(1), signed_sin[positions].unsqueeze(1)
    qk = (qk * cos).addcmul_(qk.roll(dim // 2, -1), sin).to(qkv.dtype)
    write_kv(k_cache, qk[:, -kv_heads:].unsqueeze(1), slots.unsqueeze(1))
    write_kv(v_cache, v.unsqueeze(1), slots.unsqueeze(1))
    return qk[:, :-kv_heads]


def project_rope_write_kv(
    x: Tensor | Prenormed,
    weight: Tensor,
    bias: Tensor | None,
    qk_norm: Tensor | None,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
) -> Tensor:
    """The projection of `x`, and then `rope_write_kv`.

    Parameters
    ----------
    x : Tensor or Prenormed
        `[n, hidden]`, or rows within a norm that the projection completes.
    weight : Tensor
        `[(H + 2 Hkv) D, hidden]`.
    bias, qk_norm, cos, signed_sin, positions, slots, k_cache, v_cache, eps
        As for `rope_write_kv`; the bias is added before the projection is rounded.

    Returns
    -------
    Tensor
        `[n, H, D]`, the rotated queries.
    """
    qkv = project(x, weight, bias, eps)
    return rope_write_kv(
        qkv, None, qk_norm, cos, signed_sin, positions, slots, k_cache, v_cache, eps
    )
