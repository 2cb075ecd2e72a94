"""Paged attention in plain torch: the truth for the kernels, and the CPU's path."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specbench.config import Queries, Share


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
    """

    score: Literal["logit", "weight"] = "weight"
    queries: Queries = "first+last"
    share: Share = "head"

    def rows(self, count: int) -> list[int]:
        """The collected rows of a chunk of `count` rows, each once."""
        chosen = {"first+last": {0, count - 1}, "last": {count - 1}, "all": set(range(count))}
        return sorted(chosen[self.queries])


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
) -> tuple[Tensor, Tensor]:
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
    out : Tensor
        `[R, Q, H, D]`.
    lse : Tensor
        `[R, Q, H]`, log-sum-exp of the scaled logits; -inf on padding.
    """
    _, _, heads, _ = q.shape
    kv_heads = k_cache.shape[2]
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=_compute_type(q))
    for r, (length, rows) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        if rows == 0:
            continue
        keys = read_kv(k_cache, block_table[r], length).to(lse.dtype)
        values = read_kv(v_cache, block_table[r], length).to(lse.dtype)
        query = _by_kv_head(q[r, :rows], kv_heads).to(lse.dtype)
        logits = torch.matmul(query, keys.permute(1, 2, 0)).mul_(scale)
        if rows > 1:
            column = torch.arange(length, device=q.device)
            row = torch.arange(rows, device=q.device)[:, None] + (length - rows)
            causal = (column > row).repeat(heads // kv_heads, 1)
            logits.masked_fill_(causal, -torch.inf)
        norm = logits.logsumexp(-1, keepdim=True)
        attended = torch.matmul(logits.sub_(norm).exp_(), values.transpose(0, 1))
        out[r, :rows] = _by_row(attended, rows).to(q.dtype)
        lse[r, :rows] = _by_row(norm, rows).squeeze(-1)
    return out, lse


def collect_scores(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    q_lens: Tensor,
    ranked: Tensor,
    lse: Tensor,
    scale: float,
    collect: Collect,
    scores: Tensor,
) -> None:
    """How much each of the first `ranked` entries mattered to the collected rows.

    Parameters
    ----------
    q, k_cache, block_table, kv_lens, q_lens, scale
        As for `paged_attention`.
    ranked : Tensor
        `[R]`, how many entries of each request are candidates; none of them is masked for any row.
    lse : Tensor
        `[R, Q, H]` from `paged_attention`.
    collect : Collect
        What is summed.
    scores : Tensor
        `[R, S, L]`, written: S is Hkv, or 1 where heads share a set. Entries at or past
        ``ranked[r]`` become -inf; a request without rows is left as it was.
    """
    kv_heads = k_cache.shape[2]
    for r, (rows, length) in enumerate(zip(q_lens.tolist(), ranked.tolist(), strict=True)):
        if rows == 0:
            continue
        chosen = collect.rows(rows)
        keys = read_kv(k_cache, block_table[r], length).to(lse.dtype)
        query = _by_kv_head(q[r, chosen], kv_heads).to(lse.dtype)
        if collect.score == "logit":
            # the sum over rows and heads of a group is linear: one summed query gives it
            total = torch.matmul(query.sum(1, keepdim=True), keys.permute(1, 2, 0)).squeeze(1)
        else:
            logits = torch.matmul(query, keys.permute(1, 2, 0)).mul_(scale)
            norm = _by_kv_head(lse[r, chosen].unsqueeze(-1), kv_heads)
            total = logits.sub_(norm).exp_().sum(1)
        if collect.share == "layer":
            total = total.sum(0, keepdim=True)
        scores[r, :, :length] = total.to(scores.dtype)
        scores[r, :, length:] = -torch.inf


def _compute_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _by_kv_head(rows: Tensor, kv_heads: int) -> Tensor:
    """`[m, H, D]` to `[Hkv, G * m, D]`: the query heads of a group beside each other."""
    m, heads, dim = rows.shape
    grouped = rows.view(m, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    return grouped.reshape(kv_heads, -1, dim)


def _by_row(grouped: Tensor, m: int) -> Tensor:
    """`[Hkv, G * m, D]` back to `[m, H, D]`."""
    kv_heads, packed, dim = grouped.shape
    return grouped.view(kv_heads, packed // m, m, dim).permute(2, 0, 1, 3).flatten(1, 2)
