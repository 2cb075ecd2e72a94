"""Attention of a tree's nodes over a paged prefix and each other, in plain torch."""

import torch
from torch import Tensor

from specbench.kernels.paged_attention.reference import read_kv


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
    """Hybrid tree attention: the prefix without a mask, the tree under one, merged.

    Parameters
    ----------
    q : Tensor
        `[R, Q, H, D]`, Q up to 128.
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]`, the tree's own keys and values included.
    block_table : Tensor
        `[R, P]`, the pages of each request in order.
    kv_lens, q_lens : Tensor
        `[R]`; the tree is the last C of the ``kv_lens[r]`` entries, the prefix what lies before.
        Rows at or past ``q_lens[r]`` are padding and come out as zeros.
    mask : Tensor
        bool `[R, Q, C]`, C up to 512: which entries of the tree a row sees. It sees all of the
        prefix; where that is empty, at least one entry of the tree.
    scale : float
        Multiplies the logits before the softmax.

    Returns
    -------
    out : Tensor
        `[R, Q, H, D]`.
    lse : Tensor
        float32 (float64 for float64 queries) `[R, Q, H]`, log-sum-exp of the scaled logits; -inf on
        padding. With it, further parts can be merged (`merge`).

    Notes
    -----
    Source: Yang et al., "LongSpec", 2025 (hybrid tree attention).
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=compute)
    columns = mask.shape[2]
    for r, (length, rows) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if rows == 0:
            continue
        query = q[r, :rows].to(compute)
        keys = read_kv(k_cache, block_table[r], length).to(compute)
        values = read_kv(v_cache, block_table[r], length).to(compute)
        before = max(length - columns, 0)
        visible = mask[r, :rows, columns - (length - before) :]
        tree = attend(query, keys[before:], values[before:], scale, visible)
        if before:
            tree = merge(attend(query, keys[:before], values[:before], scale), tree)
        out[r, :rows], lse[r, :rows] = tree[0].to(q.dtype), tree[1]
    return out, lse


def row_weights(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    mask: Tensor | None,
    scale: float,
    weights: Tensor,
) -> None:
    """Softmax weights of every row, averaged over the heads.

    Parameters
    ----------
    q, k_cache, block_table, kv_lens, q_lens, scale
        As for `tree_attention`.
    mask : Tensor or None
        As for `tree_attention`; None is causal order.
    weights : Tensor
        float `[R, Q, L]`, written: 0 for entries that a row does not see. A request without rows is
        left as it was.
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    for r, (length, rows) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if rows == 0:
            continue
        visible = torch.ones(rows, length, dtype=torch.bool, device=q.device).tril(length - rows)
        if mask is not None:
            last = min(mask.shape[2], length)
            visible[:] = True
            visible[:, length - last :] = mask[r, :rows, mask.shape[2] - last :]
        keys = read_kv(k_cache, block_table[r], length).to(compute)
        logits = _logits(q[r, :rows].to(compute), keys, scale).masked_fill(~visible, -torch.inf)
        weights[r, :rows] = 0
        weights[r, :rows, :length] = logits.softmax(-1).mean((0, 1)).to(weights.dtype)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One part of an attention: its output `[m, H, D]` and log-sum-exp `[m, H]`.

    Parameters
    ----------
    q : Tensor
        `[m, H, D]`.
    keys, values : Tensor
        `[n, Hkv, D]`.
    scale : float
    visible : Tensor, optional
        bool `[m, n]`; by default every row sees all. A row that sees nothing has zeros and -inf.
    """
    logits = _logits(q, keys, scale)
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
        # what nobody sees may be memory that nothing has written: a zero weight times NaN is NaN
        values = values.masked_fill(~visible.any(0)[:, None, None], 0)
    lse = logits.logsumexp(-1)
    weights = torch.exp(logits - lse.nan_to_num(neginf=0)[..., None])
    out = torch.matmul(weights, values.transpose(0, 1).unsqueeze(1))
    return out.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2)


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The attention over two disjoint parts, from each part's output and log-sum-exp.

    Outputs are `[..., D]`, log-sum-exps `[...]`; in no place may both parts be empty.
    """
    lse = torch.logaddexp(one[1], other[1])
    shares = (torch.exp(part[1] - lse)[..., None] for part in (one, other))
    first, second = shares
    return one[0] * first + other[0] * second, lse


def _logits(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scaled logits `[Hkv, G, m, n]` of rows `[m, H, D]` and keys `[n, Hkv, D]`."""
    query = q.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
    return torch.matmul(query, keys.permute(1, 2, 0).unsqueeze(1)) * scale
