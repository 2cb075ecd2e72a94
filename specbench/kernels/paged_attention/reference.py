"""Paged attention in plain torch: the truth for the kernels, and the CPU's path."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config import Queries, Share

# weights are held for so many collected rows at a time: memory grows with the prompt, not with rows
_ROWS = 8


@dataclass(frozen=True)
class Collect:
    """Which attention scores a forward hands over, and how they are summed.

    Attributes
    ----------
    score : {"logit", "weight"}
        Sum pre-softmax logits (the Vegas paper's formula) or softmax weights (its release).
    queries : {"first+last", "last", "all"}
        The chunk's rows that are summed; "first+last" is Collect-2-Query.
    share : {"head", "layer"}
        One number a KV head, or one for all heads of a layer.
    last : int
        With the queries "last", how many of the chunk's last rows.
    add : bool
        Add to what `scores` holds: the collected rows of a prompt may lie in several chunks.
    """

    score: Literal["logit", "weight"] = "weight"
    queries: Queries = "first+last"
    share: Share = "head"
    last: int = 1
    add: bool = False

    def rows(self, count: int) -> list[int]:
        """The collected rows of a chunk of `count` rows, each once."""
        if self.queries == "last":
            return list(range(max(count - self.last, 0), count))
        return list(range(count)) if self.queries == "all" else sorted({0, count - 1})


def write_kv(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store keys or values at their slots.

    Parameters
    ----------
    cache : Tensor
        `[pages, page_size, Hkv, D]`; page 0 belongs to nobody and takes the masked writes.
    values : Tensor
        `[R, Q, Hkv, D]`.
    slots : Tensor
        int64 `[R, Q]`, ``page * page_size + offset``; -1 writes nothing that is ever read.
    """
    slots = slots.clamp(min=0)
    cache[slots // cache.shape[1], slots % cache.shape[1]] = values


def read_kv(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first `length` entries of a request, `[length, Hkv, D]`, from its row of the table."""
    page_size = cache.shape[1]
    used = pages[: -(-length // page_size)]
    return cache.index_select(0, used).flatten(0, 1)[:length]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of each request's last rows over its whole paged KV.

    Parameters
    ----------
    q : Tensor
        `[R, Q, H, D]`; row i of request r stands at position ``kv_lens[r] - q_lens[r] + i``.
    k_cache, v_cache : Tensor
        `[pages, page_size, Hkv, D]`, the chunk's own keys and values included.
    block_table : Tensor
        `[R, P]`, the pages of each request in order.
    kv_lens, q_lens : Tensor
        `[R]`; rows at or past ``q_lens[r]`` are padding and come out as zeros.
    scale : float
        Multiplies the logits before the softmax.

    Returns
    -------
    Tensor
        `[R, Q, H, D]`.
    """
    out = torch.zeros_like(q)
    compute = _compute_type(q)
    for r, (length, rows) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if rows == 0:
            continue
        # heads first: [1, Hkv, length, D]
        keys = read_kv(k_cache, block_table[r], length).to(compute).transpose(0, 1)[None]
        values = read_kv(v_cache, block_table[r], length).to(compute).transpose(0, 1)[None]
        attended = F.scaled_dot_product_attention(
            q[r, :rows].to(compute).transpose(0, 1)[None],
            keys,
            values,
            attn_mask=_visible(rows, length, q.device) if 1 < rows < length else None,
            is_causal=rows == length,
            scale=scale,
            enable_gqa=True,
        )
        out[r, :rows] = attended[0].transpose(0, 1).to(q.dtype)
    return out


def log_sum_exp(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    scale: float,
) -> Tensor:
    """Log-sum-exp of the scaled logits of `paged_attention`: what merges partial attention.

    Returns
    -------
    Tensor
        float32 (float64 for float64 queries) `[R, Q, H]`; -inf on padding.
    """
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=_compute_type(q))
    for r, (length, rows) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if rows:
            keys = read_kv(k_cache, block_table[r], length)
            logits = _logits(q[r, :rows], keys, _visible(rows, length, q.device), scale)
            lse[r, :rows] = logits.logsumexp(-1).flatten(0, 1).T
    return lse


def collect_scores(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    ranked: Tensor,
    scale: float,
    collect: Collect,
    scores: Tensor,
    norm: Tensor | None = None,
    tree_mask: Tensor | None = None,
) -> None:
    """How much each of the first `ranked` entries mattered to the collected rows.

    Parameters
    ----------
    q, k_cache, block_table, kv_lens, q_lens, scale
        As for `paged_attention`.
    ranked : Tensor
        `[R]`, how many entries of each request are candidates; none of them is masked for any
        collected row.
    collect : Collect
        What is summed. Logits are summed without `scale`, which changes no order.
    scores : Tensor
        `[R, S, L]`, written, or added to where `collect` says so: S is Hkv, or 1 where heads share
        a set. Entries at or past ``ranked[r]`` become -inf; a request without rows is left as it
        was.
    norm : Tensor, optional
        `[R, c, H]`, for weights: the normalisers (natural logarithms) that stand in for each
        collected row's own log-sum-exp, which takes their place afterwards. With the queries
        "first+last" c is 2, and a single row is both.
    tree_mask : Tensor, optional
        bool `[R, Q, C]`: which of the last C entries a row sees, in place of causal order. All rows
        see what lies before them.
    """
    kv_heads = k_cache.shape[2]
    lengths = zip(kv_lens.tolist(), q_lens.tolist(), ranked.tolist(), strict=True)
    for r, (length, rows, candidates) in enumerate(lengths):
        if rows == 0:
            continue
        chosen = collect.rows(rows)
        keys = read_kv(k_cache, block_table[r], length)
        seen = _visible(rows, length, q.device)
        if tree_mask is not None:
            columns = min(tree_mask.shape[2], length)
            seen[:, : length - columns] = True
            seen[:, length - columns :] = tree_mask[r, :rows, tree_mask.shape[2] - columns :]
        if collect.score == "logit":
            # the sum over rows and heads of a group is linear: one summed query gives it
            query = q[r, chosen].to(_compute_type(q)).sum(0).unflatten(0, (kv_heads, -1)).sum(1)
            total = torch.einsum("hd,nhd->hn", query, keys[:candidates].to(query.dtype))
        elif norm is not None:
            visible = seen[chosen]
            logits = _logits(q[r, chosen], keys, visible, scale)
            given = norm[r, : len(chosen)].T.reshape(kv_heads, -1, len(chosen), 1)
            total = (logits - given).exp()[..., :candidates].sum((1, 2))
            own = logits.logsumexp(-1).flatten(0, 1).T.to(norm.dtype)
            both = collect.queries == "first+last" and len(chosen) == 1
            norm[r, : 2 if both else len(chosen)] = own
        else:
            total = q.new_zeros(kv_heads, candidates, dtype=_compute_type(q))
            for at in range(0, len(chosen), _ROWS):
                block = chosen[at : at + _ROWS]
                weights = _logits(q[r, block], keys, seen[block], scale).softmax(-1)
                total += weights[..., :candidates].sum((1, 2))
        if collect.share == "layer":
            total = total.sum(0, keepdim=True)
        if collect.add:
            total = total + scores[r, :, :candidates]
        scores[r, :, :candidates] = total.to(scores.dtype)
        scores[r, :, candidates:] = -torch.inf


def _logits(rows: Tensor, keys: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Scaled logits `[Hkv, G, m, n]` of rows `[m, H, D]` and keys `[n, Hkv, D]`."""
    compute = _compute_type(rows)
    query = rows.to(compute).unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
    logits = torch.matmul(query, keys.to(compute).permute(1, 2, 0).unsqueeze(1)) * scale
    return logits.masked_fill_(~visible, -torch.inf)


def _visible(rows: int, length: int, device: torch.device) -> Tensor:
    """Which of `length` columns the last `rows` rows see, `[rows, length]`."""
    row = torch.arange(rows, device=device)[:, None] + (length - rows)
    return torch.arange(length, device=device) <= row


def _compute_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32
