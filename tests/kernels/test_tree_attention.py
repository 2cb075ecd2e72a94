"""Tree attention: both versions against dense attention with an explicit mask."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.kernels.tree_attention import reference
from tests.support.device import DEVICE
from tests.support.paged import assert_close, interleaved, paged, randn

pytest.importorskip("triton")

from specbench.kernels.tree_attention import triton

SCALE = 0.3
VERSIONS = [(reference, torch.float64), (reference, torch.bfloat16), (triton, torch.float32)]


def ancestors(rows: int, queries: int, columns: int) -> Tensor:
    """The masks of random trees in topological order; the last `queries` nodes ask."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.zeros(rows, columns, columns, dtype=torch.bool)
    for row in range(rows):
        for node in range(columns):
            mask[row, node, node] = True
            parent = int(torch.randint(-1, node, (1,), generator=generator)) if node else -1
            if parent >= 0:
                mask[row, node] |= mask[row, parent]
    return mask[:, columns - queries :]


def dense(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """One request's output and log-sum-exp in fp64; the mask is of the last columns."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    visible = torch.ones(len(q), len(keys), dtype=torch.bool)
    last = min(mask.shape[1], len(keys))
    visible[:, len(keys) - last :] = mask[:, mask.shape[1] - last :]
    logits = torch.einsum("mhd,nhd->mhn", q.double(), keys) * SCALE
    logits = logits.masked_fill(~visible[:, None], -torch.inf)
    out = torch.einsum("mhn,nhd->mhd", logits.softmax(-1), values)
    return out, logits.logsumexp(-1)


@pytest.mark.parametrize(("version", "dtype"), VERSIONS)
@pytest.mark.parametrize(
    ("prefixes", "queries", "columns", "heads"),
    [
        ((37, 0, 5), 7, 7, 4),
        ((16, 90), 51, 51, 6),
        ((33, 2), 4, 20, 4),
        ((70, 15), 128, 512, 2),
    ],
)
def test_it_equals_dense_masked_attention(
    version: object,
    dtype: torch.dtype,
    prefixes: tuple[int, ...],
    queries: int,
    columns: int,
    heads: int,
) -> None:
    kv = interleaved(paged([n + columns for n in prefixes], dtype=dtype))
    rows = len(prefixes)
    q = randn(7, rows, queries, heads, 8, dtype=dtype)
    mask = ancestors(rows, queries, columns)
    kv_lens = torch.tensor(prefixes) + columns
    q_lens = torch.tensor([max(queries - 3 * row, 1) for row in range(rows)])
    call: Callable[..., tuple[Tensor, Tensor]] = version.tree_attention  # type: ignore[attr-defined]
    on = [x.to(DEVICE) for x in (q, kv.k_cache, kv.v_cache, kv.block_table, kv_lens, q_lens, mask)]
    out, lse = (x.cpu() for x in call(*on, SCALE))
    for row, count in enumerate(q_lens.tolist()):
        expected, sums = dense(q[row], kv.keys[row], kv.values[row], mask[row])
        assert_close(out[row, :count], expected[:count], dtype)
        assert_close(lse[row, :count], sums[:count], torch.float32)
        assert (out[row, count:] == 0).all()
        assert (lse[row, count:] == -torch.inf).all()


def test_a_request_without_rows_is_all_padding() -> None:
    kv = paged([30, 30])
    q = randn(1, 2, 3, 4, 8)
    mask = ancestors(2, 3, 3)
    lens, rows = torch.tensor([30, 30]), torch.tensor([3, 0])
    args = (q, kv.k_cache, kv.v_cache, kv.block_table, lens, rows, mask, SCALE)
    out, lse = reference.tree_attention(*args)
    assert (out[1] == 0).all()
    assert (lse[1] == -torch.inf).all()


def test_parts_merge_to_the_whole() -> None:
    keys, values, q = randn(1, 40, 2, 8), randn(2, 40, 2, 8), randn(3, 5, 4, 8)
    visible = randn(4, 5, 40) > 0
    whole = reference.attend(q, keys, values, SCALE, visible)
    parts = [
        reference.attend(q, keys[a:b], values[a:b], SCALE, visible[:, a:b])
        for a, b in ((0, 13), (13, 30), (30, 40))
    ]
    merged = reference.merge(reference.merge(parts[0], parts[1]), parts[2])
    for found, expected in zip(merged, whole, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_part_of_which_a_row_sees_nothing_has_no_say() -> None:
    keys, values, q = randn(1, 6, 2, 8), randn(2, 6, 2, 8), randn(3, 2, 4, 8)
    values[5] = torch.nan
    visible = torch.zeros(2, 6, dtype=torch.bool)
    visible[0, :3] = True
    out, lse = reference.attend(q, keys, values, SCALE, visible)
    assert (out[1] == 0).all()
    assert (lse[1] == -torch.inf).all()
    whole = reference.attend(q, keys[:3], values[:3], SCALE)
    torch.testing.assert_close(out[0], whole[0][0])


@pytest.mark.parametrize("prefixes", [(70, 128, 0), (59, 123, 250)])
def test_masked_tiles_are_taken_in_parts(prefixes: tuple[int, ...]) -> None:
    queries, heads = 69, 4
    dtype = torch.bfloat16
    kv = interleaved(paged([n + queries for n in prefixes], dim=64, dtype=dtype))
    q = randn(7, len(prefixes), queries, heads, 64, dtype=dtype)
    mask = ancestors(len(prefixes), queries, queries)
    kv_lens = torch.tensor(prefixes) + queries
    q_lens = torch.full_like(kv_lens, queries)
    on = [x.to(DEVICE) for x in (q, kv.k_cache, kv.v_cache, kv.block_table, kv_lens, q_lens, mask)]
    out, lse = (x.cpu() for x in triton.tree_attention(*on, SCALE))
    for row in range(len(prefixes)):
        expected, sums = dense(q[row], kv.keys[row], kv.values[row], mask[row])
        # weights are rounded before they meet the values
        assert (out[row].double() - expected).norm() < 5e-3 * expected.norm()
        torch.testing.assert_close(lse[row].double(), sums, rtol=1e-2, atol=2e-2)
