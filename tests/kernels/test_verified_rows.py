"""What is kept of a verified batch: queries that vote, keys and values of what was drafted."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.kernels.verified_rows import reference
from tests.support.buffers import DEVICE
from tests.support.paged import randn

HEADS, KV_HEADS, DIM, CAPACITY = 6, 2, 8, 3
# a verification, one with fewer drafts, a prompt's chunk, nothing, a single row, the most rows
ROWS = (4, 2, 9, 0, 1, 4)
STARTS = torch.tensor([0, *torch.tensor(ROWS).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of the rows, and two rows of padding, as parts of one projection."""
    rows = int(STARTS[-1]) + 2
    qkv = randn(0, rows, HEADS + 2 * KV_HEADS, DIM, dtype=torch.float32).to(DEVICE)
    query, key, value = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
    return query, key, value


def kept(keep_rows: Callable[..., None]) -> tuple[Tensor, Tensor, Tensor]:
    """Votes and pools, NaN where nothing was written; room for one request more than come."""
    requests = len(ROWS) + 1
    votes = torch.full((requests, 2, HEADS, DIM), torch.nan, device=DEVICE)
    pool = torch.full((2, requests, 16, KV_HEADS, DIM), torch.nan, device=DEVICE)
    k_pool, v_pool = pool[:, :, :CAPACITY]
    keep_rows(*batch(), STARTS, votes, k_pool, v_pool)
    assert pool[:, :, CAPACITY:].isnan().all()
    return votes, k_pool, v_pool


def test_the_ends_of_each_request_and_the_rows_after_its_first() -> None:
    query, key, value = batch()
    votes, k_pool, v_pool = kept(reference.keep_rows)
    for r, rows in enumerate(ROWS):
        begin, end = int(STARTS[r]), int(STARTS[r + 1])
        if rows == 0:
            assert votes[r].isnan().all()
        else:
            assert torch.equal(votes[r], query[[begin, end - 1]])
        drafts = rows - 1 if 0 < rows <= CAPACITY + 1 else 0
        for pool, given in ((k_pool, key), (v_pool, value)):
            assert torch.equal(pool[r, :drafts], given[begin + 1 : begin + 1 + drafts])
            assert pool[r, drafts:].isnan().all()
    assert votes[len(ROWS)].isnan().all()


def test_the_kernel_copies_the_same() -> None:
    pytest.importorskip("triton")
    from specbench.kernels.verified_rows.triton import keep_rows

    for ours, expected in zip(kept(keep_rows), kept(reference.keep_rows), strict=True):
        assert torch.equal(ours.nan_to_num(7.5), expected.nan_to_num(7.5))


def test_the_kernel_refuses_what_it_would_write_astray() -> None:
    pytest.importorskip("triton")
    from specbench.kernels.verified_rows.triton import keep_rows

    votes = torch.zeros(len(ROWS) - 1, 2, HEADS, DIM)
    pool = torch.zeros(len(ROWS), CAPACITY, KV_HEADS, DIM)
    with pytest.raises(ValueError, match="room for 5 requests, the batch has 6"):
        keep_rows(*batch(), STARTS, votes, pool, pool)
    with pytest.raises(ValueError, match="pools with strides"):
        keep_rows(*batch(), STARTS, votes, pool, pool.transpose(1, 2).contiguous().transpose(1, 2))
