"""The Triton kernel of row weights against the reference."""

import pytest
import torch

from specbench.kernels.tree_attention import reference
from tests.support.device import DEVICE
from tests.support.paged import head_major, paged, randn

pytest.importorskip("triton")

from specbench.kernels.paged_attention.triton import log_sum_exp
from specbench.kernels.tree_attention.triton import row_weights, tree_attention

SCALE = 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "queries", "tree"), [(4, 5, False), (6, 21, True), (2, 1, True)])
def test_they_equal_the_reference(heads: int, queries: int, tree: bool, dtype: torch.dtype) -> None:
    kv = head_major(paged([90, queries, 40], dtype=dtype))
    q = randn(7, 3, queries, heads, 8, dtype=dtype)
    kv_lens = torch.tensor([90, queries, 40])
    q_lens = torch.tensor([queries, max(queries - 2, 1), 0])
    mask = None
    if tree:
        mask = randn(5, 3, queries, queries) > 0
        mask |= torch.eye(queries, dtype=torch.bool)
    lengths = kv.block_table, kv_lens, q_lens
    expected = torch.full((3, queries, 100), 7.0)
    reference.row_weights(q, kv.k_cache, *lengths, mask, SCALE, expected)
    on = [x.to(DEVICE) for x in (q, kv.k_cache, *lengths)]
    if mask is None:
        lse = log_sum_exp(*on, SCALE)
    else:
        mask = mask.to(DEVICE)
        lse = tree_attention(on[0], on[1], *on[1:], mask, SCALE)[1]
    found = torch.full((3, queries, 100), 7.0, device=DEVICE)
    row_weights(*on, mask, SCALE, found, lse)
    found = found.cpu()
    for row, (entries, count) in enumerate(zip(kv_lens.tolist(), q_lens.tolist(), strict=True)):
        here = found[row, :count, :entries]
        torch.testing.assert_close(here, expected[row, :count, :entries], rtol=1e-3, atol=1e-5)
        assert (found[row, count:] == 7).all()
        assert (found[row, :, entries:] == 7).all()
