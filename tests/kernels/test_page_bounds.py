"""Page bounds and the scores that they give, against every key of every page."""

import pytest
import torch
from torch import Tensor

from specbench.kernels.page_bounds.reference import page_scores, update_bounds
from tests.support.paged import DTYPES, Paged, assert_close, head_major, interleaved, paged, randn

LENGTHS = (1, 16, 17, 40, 64)


def bounded(kv: Paged, lengths: list[int], pages: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of a one-layer cache, NaN where nothing was written."""
    shape = (1, kv.k_cache.shape[0], *kv.k_cache.shape[2:])
    low, high = (torch.full(shape, torch.nan, dtype=kv.k_cache.dtype) for _ in range(2))
    update_bounds(kv.k_cache[None], kv.block_table, pages, torch.tensor(lengths), low, high)
    return low[0], high[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [lambda kv: kv, interleaved, head_major])
def test_bounds_are_those_of_the_entries(layout: object, dtype: torch.dtype) -> None:
    kv = layout(paged(LENGTHS, dtype=dtype))  # type: ignore[operator]
    low, high = bounded(kv, list(LENGTHS), torch.arange(6).expand(5, -1))
    for row, length in enumerate(LENGTHS):
        for place, keys in enumerate(kv.keys[row].split(16)):
            page = kv.block_table[row, place]
            assert torch.equal(low[page], keys.amin(0))
            assert torch.equal(high[page], keys.amax(0))
        assert -(-length // 16) == len(kv.keys[row].split(16))


def test_only_the_named_pages_are_written_and_only_entries_count() -> None:
    kv = paged((40, 40))
    # of the second request only 33 entries count: the rest are drafts that were rejected
    low, high = bounded(kv, [40, 33], torch.tensor([[1, 1], [2, 3]]))
    written = {int(kv.block_table[0, 1]): kv.keys[0][16:32]}
    written[int(kv.block_table[1, 2])] = kv.keys[1][32:33]
    for page in range(1, len(low)):
        if page in written:
            assert torch.equal(low[page], written[page].amin(0))
            assert torch.equal(high[page], written[page].amax(0))
        else:
            assert low[page].isnan().all()
            assert high[page].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3])
def test_scores_bound_every_key_of_the_page(group: int, dtype: torch.dtype) -> None:
    kv = paged(LENGTHS, dtype=dtype)
    q = randn(9, len(LENGTHS), 1, 2 * group, 8, dtype=dtype)
    low, high = bounded(kv, list(LENGTHS), torch.arange(6).expand(5, -1))
    scores = page_scores(q, low, high, kv.block_table)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    assert scores.dtype == compute
    for row in range(len(LENGTHS)):
        query = q[row, 0].double().view(2, group, 8)
        for place, keys in enumerate(kv.keys[row].double().split(16)):
            ends = keys.amin(0)[:, None], keys.amax(0)[:, None]
            by_definition = torch.maximum(query * ends[0], query * ends[1]).sum(-1).mean(1)
            assert_close(scores[row, :, place], by_definition, compute)
            products = torch.einsum("hgd,nhd->hgn", query, keys)
            assert (scores[row, :, place] >= products.amax(-1).mean(-1) - 1e-5).all()
