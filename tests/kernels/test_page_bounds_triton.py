"""The Triton page scores against the reference, and runs of slots in the sparse attention."""

from dataclasses import replace

import pytest
import torch

from specbench.kernels.page_bounds import reference
from specbench.kernels.sparse_attention.reference import sparse_attention as dense_list
from tests.support.buffers import DEVICE
from tests.support.paged import paged, randn

pytest.importorskip("triton")

from specbench.kernels.page_bounds.triton import page_scores
from specbench.kernels.sparse_attention.triton import sparse_attention

TYPES = (torch.float32, torch.float16, torch.bfloat16)
LENGTHS = (1, 16, 17, 700, 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("group", "dim"), [(1, 8), (3, 8), (7, 64), (2, 80)])
def test_scores_equal_the_reference(group: int, dim: int, dtype: torch.dtype) -> None:
    kv = paged(LENGTHS, dim=dim, dtype=dtype)
    q = randn(9, len(LENGTHS), 1, 2 * group, dim, dtype=dtype)
    shape = kv.k_cache.shape[0], 2, dim
    low = randn(1, *shape, dtype=dtype)
    high = low + randn(2, *shape, dtype=dtype).abs()
    expected = reference.page_scores(q, low, high, kv.block_table)
    tensors = [x.to(DEVICE) for x in (q, low, high, kv.block_table)]
    tolerance = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(page_scores(*tensors).cpu(), expected, **tolerance)
    complete = torch.tensor([n // 16 for n in LENGTHS], device=DEVICE)
    found = page_scores(*tensors, complete).cpu()
    for row, length in enumerate(LENGTHS):
        held = length // 16
        torch.testing.assert_close(found[row, :, :held], expected[row, :, :held], **tolerance)


def test_a_page_without_bounds_spoils_no_other() -> None:
    q = randn(3, 1, 1, 4, 8, dtype=torch.float32).to(DEVICE)
    bounds = torch.ones(4, 2, 8, device=DEVICE)
    bounds[3] = torch.nan
    table = torch.tensor([[1, 2, 3]], device=DEVICE)
    found = page_scores(q, bounds, bounds, table, torch.tensor([2], device=DEVICE))
    assert found[..., :2].isfinite().all()


def test_what_it_cannot_take() -> None:
    q, bounds = torch.zeros(1, 1, 4, 8), torch.zeros(3, 2, 8)
    table = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="multiple of 2 KV heads"):
        page_scores(q[:, :, :3], bounds, bounds, table)
    with pytest.raises(ValueError, match="expected equal strides"):
        page_scores(q, bounds, torch.zeros(3, 2, 16)[..., ::2], table)


@pytest.mark.parametrize("number", [torch.int32, torch.int64])
@pytest.mark.parametrize("sets", [1, 2])
def test_runs_of_slots_are_their_slots(sets: int, number: torch.dtype) -> None:
    kv = paged((100, 40, 70), dtype=torch.float32)
    kv = replace(kv, k_cache=kv.k_cache.to(DEVICE), v_cache=kv.v_cache.to(DEVICE))
    q = randn(4, 3, 1, 6, 8, dtype=torch.float32).to(DEVICE)
    pages = torch.full((3, sets, 4), -1)
    tail = torch.full((3, 9), -1)
    for row, held in enumerate((6, 2, 0)):
        for s in range(sets):
            chosen = torch.randperm(held)[:3]
            # -1 may stand anywhere
            pages[row, s, -len(chosen) :] = kv.block_table[row, chosen] if held else -1
        tail[row, : row + 1] = kv.slots(row, torch.arange(held * 16, held * 16 + row + 1))
    pages, tail = pages.to(DEVICE), tail.to(DEVICE)
    slots = torch.where(
        pages[..., None] >= 0, pages[..., None] * 16 + torch.arange(16).to(pages), -1
    )
    expected = dense_list(q, kv.k_cache, kv.v_cache, slots.flatten(-2), tail, 0.3)
    whole = dense_list(q, kv.k_cache, kv.v_cache, pages, tail, 0.3, 16)
    assert torch.equal(whole, expected)
    found = sparse_attention(q, kv.k_cache, kv.v_cache, pages.to(number), tail, 0.3, 16)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-5)
