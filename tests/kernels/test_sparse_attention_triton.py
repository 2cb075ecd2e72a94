"""The Triton sparse attention against the reference in fp64."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.sparse_attention import reference
from tests.support.paged import Paged, head_major, interleaved, paged, randn
from tests.support.sparse import choose, tail_pool

pytest.importorskip("triton")

from specbench.kernels.launch import MOST_AHEAD
from specbench.kernels.sparse_attention.triton import sparse_attention
from specbench.kernels.sparse_attention.workspace import (
    LAUNCHES,
    SETTLED_LAUNCHES,
    Launch,
    SparseAttentionWorkspace,
    default_launch,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = (1, 15, 16, 17, 63, 100)
SCALE = 0.31
SMALL = Launch(tile=16, warps=4, stages=2, programs_per_sm=12, tiles_per_split=1)
# lists that are settled, their first tiles read before the wait
HELD = replace(SMALL, programs_per_sm=6, held=True)
# weights are rounded to the inputs' type before they meet the values: relative and absolute
TOLERANCE = {
    torch.float32: (2e-5, 1e-5),
    torch.float16: (2**-9, 2e-3),
    torch.bfloat16: (2**-7, 1e-2),
}


def on_device(kv: Paged) -> Paged:
    return replace(kv, k_cache=kv.k_cache.to(DEVICE), v_cache=kv.v_cache.to(DEVICE))


def check(out: Tensor, q: Tensor, kv: Paged, selected: Tensor, tail: Tensor) -> None:
    """`out` against the reference over the same entries in fp64."""
    expected = reference.sparse_attention(
        q.double().cpu(),
        kv.k_cache.double().cpu(),
        kv.v_cache.double().cpu(),
        selected.long().cpu(),
        tail.long().cpu(),
        SCALE,
    )
    relative, absolute = TOLERANCE[q.dtype]
    assert out.dtype == q.dtype
    torch.testing.assert_close(out.double().cpu(), expected, rtol=relative, atol=absolute)


def poisoned(
    requests: int, heads: int, kv_heads: int, dim: int, launch: Launch = SMALL
) -> SparseAttentionWorkspace:
    """A workspace that nothing has written yet."""
    workspace = SparseAttentionWorkspace(
        requests, heads, kv_heads, dim, torch.float32, DEVICE, launch
    )
    workspace.partial.fill_(torch.nan)
    workspace.sums.fill_(torch.nan)
    return workspace


def run(
    kv: Paged,
    q: Tensor,
    selected: Tensor,
    tail: Tensor,
    launch: Launch = SMALL,
    counts: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    requests, _, heads, dim = q.shape
    workspace = poisoned(requests, heads, kv.k_cache.shape[2], dim, launch)
    return sparse_attention(
        q.to(DEVICE),
        kv.k_cache,
        kv.v_cache,
        selected.to(DEVICE),
        tail.to(DEVICE),
        SCALE,
        counts=None if counts is None else counts.to(DEVICE),
        workspace=workspace,
        out=torch.full(q.shape, torch.nan, dtype=q.dtype, device=DEVICE),
        settled=launch.held,
        lse=lse,
    )


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize(
    ("group", "dtype", "launch"),
    [
        *((group, torch.float32, SMALL) for group in (1, 3, 7)),
        (4, torch.float16, SMALL),
        (4, torch.bfloat16, SMALL),
        (7, torch.float32, HELD),
        (4, torch.bfloat16, HELD),
    ],
)
def test_equals_the_reference(group: int, sets: int, dtype: torch.dtype, launch: Launch) -> None:
    kv = on_device(paged(LENGTHS, dtype=dtype))
    selected, tail, _ = choose(kv, sets, width=41, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 2 * group, 8, dtype=dtype)
    check(run(kv, q, selected, tail, launch), q, kv, selected, tail)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_widths_of_heads(dim: int) -> None:
    kv = on_device(paged((17, 63), dim=dim, dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=33, tail_width=5)
    q = randn(5, 2, 1, 4, dim, dtype=torch.float32) / dim**0.5
    check(run(kv, q, selected, tail), q, kv, selected, tail)


@pytest.mark.parametrize("layout", [interleaved, head_major])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_strided_caches_are_read_in_place(
    layout: Callable[[Paged], Paged], index: torch.dtype
) -> None:
    kv = layout(on_device(paged(LENGTHS, dtype=torch.float32)))
    selected, tail, _ = choose(kv, 2, width=20, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 6, 8, dtype=torch.float32)
    out = run(kv, q, selected.to(index), tail.to(index))
    check(out, q, kv, selected, tail)


@pytest.mark.parametrize("page_size", [1, 5])
def test_page_size_is_read_from_the_cache(page_size: int) -> None:
    kv = interleaved(on_device(paged(LENGTHS, dtype=torch.float32, page_size=page_size)))
    selected, tail, _ = choose(kv, 2, width=20, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 2, 8, dtype=torch.float32)
    check(run(kv, q, selected, tail), q, kv, selected, tail)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 49])
@pytest.mark.parametrize("programs", [1, 3, 40])
@pytest.mark.parametrize("small", [SMALL, HELD])
def test_tiles_and_splits_need_not_divide_the_list(
    width: int, programs: int, small: Launch
) -> None:
    kv = on_device(paged((63, 100), dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=width, tail_width=3)
    q = randn(5, 2, 1, 4, 8, dtype=torch.float32)
    launch = replace(small, programs_per_sm=programs)
    check(run(kv, q, selected, tail, launch), q, kv, selected, tail)


@pytest.mark.parametrize(
    "launch",
    [replace(SMALL, programs_per_sm=1), replace(SMALL, programs_per_sm=40), HELD],
    ids=["whole lists", "splits", "held"],
)
def test_sums_of_the_logits_are_left_where_they_are_wanted(launch: Launch) -> None:
    kv = on_device(paged(LENGTHS, dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=41, tail_width=7)
    selected[3], tail[3] = -1, -1
    q = randn(5, len(LENGTHS), 1, 6, 8, dtype=torch.float32)
    expected = torch.empty(len(LENGTHS), 6, dtype=torch.float64)
    caches = (cache.double().cpu() for cache in (kv.k_cache, kv.v_cache))
    reference.sparse_attention(q.double(), *caches, selected, tail, SCALE, lse=expected)
    # one step of several, as the drafts leave them
    steps = torch.full((len(LENGTHS), 3, 6), torch.nan, device=DEVICE)
    run(kv, q, selected, tail, launch, lse=steps[:, 1])
    torch.testing.assert_close(steps[:, 1].double().cpu(), expected, rtol=2e-5, atol=1e-5)
    assert (expected[3] == -torch.inf).all()
    assert steps[:, [0, 2]].isnan().all()


@pytest.mark.parametrize("launch", [SMALL, HELD])
def test_lists_of_one_entry(launch: Launch) -> None:
    kv = on_device(paged((17, 63), dtype=torch.float32))
    selected = torch.stack([kv.slots(r, torch.tensor([[5], [16]])) for r in range(2)])
    q = randn(5, 2, 1, 4, 8, dtype=torch.float32)
    none = torch.full((2, 3), -1)
    out = run(kv, q, selected, none, launch)
    check(out, q, kv, selected, none)
    for r in range(2):
        torch.testing.assert_close(out[r, 0, 0].cpu(), kv.values[r][5, 0])
    tail = selected[:, 0]
    nothing = torch.full((2, 2, 20), -1)
    check(run(kv, q, nothing, tail, launch), q, kv, nothing, tail)


def compact(lists: Tensor) -> tuple[Tensor, Tensor]:
    """The same lists with their entries first, and how many each has."""
    order = (lists < 0).int().argsort(dim=-1, stable=True)
    return lists.gather(-1, order), (lists >= 0).sum(-1)


@pytest.mark.parametrize(("shared", "launch"), [(False, SMALL), (True, SMALL), (False, HELD)])
@pytest.mark.parametrize("sets", [1, 2])
def test_counts_end_the_lists(sets: int, shared: bool, launch: Launch) -> None:
    kv = on_device(paged(LENGTHS, dtype=torch.float32))
    selected, tail, _ = choose(kv, sets, width=41, tail_width=7)
    selected, counts = compact(selected)
    if shared:
        counts = counts[:, 0]
        past = torch.arange(41) >= counts[:, None]
        selected = selected.masked_fill(past[:, None], -1)
    else:
        past = torch.arange(41) >= counts[..., None]
    q = randn(5, len(LENGTHS), 1, 6, 8, dtype=torch.float32)
    # what stands past a count is not even a slot
    beyond = selected.masked_fill(past[:, None] if shared else past, 2**40)
    counts = counts.to(torch.int32 if shared else torch.int64)
    check(run(kv, q, beyond, tail, launch, counts), q, kv, selected, tail)


def test_one_workspace_serves_call_after_call() -> None:
    kv = on_device(paged(LENGTHS, dtype=torch.float32))
    workspace = poisoned(len(LENGTHS), 6, 2, 8)
    for width, rows in [(41, 3), (3, 6), (33, 1), (41, 3)]:
        selected, tail, _ = choose(kv, 2, width=width, tail_width=7)
        q = randn(width, len(LENGTHS), 1, 6, 8, dtype=torch.float32)
        selected, tail, q = selected[:rows], tail[:rows], q[:rows]
        out = sparse_attention(
            q.to(DEVICE),
            kv.k_cache,
            kv.v_cache,
            selected.to(DEVICE),
            tail.to(DEVICE),
            SCALE,
            workspace=workspace,
        )
        check(out, q, kv, selected, tail)
        assert (workspace.arrivals == 0).all()


@pytest.mark.parametrize(
    ("width", "tail_width"),
    [(0, 0), (40, 0), (0, 4), (40, 4)],
    ids=["none", "list", "tail", "both"],
)
@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("launch", [SMALL, HELD])
def test_empty_lists_give_zeros(sets: int, width: int, tail_width: int, launch: Launch) -> None:
    kv = on_device(paged((15, 63), dtype=torch.float32))
    q = torch.full((2, 1, 6, 8), torch.nan)
    selected = torch.full((2, sets, width), -1)
    assert (run(kv, q, selected, torch.full((2, tail_width), -1), launch) == 0).all()


def test_a_request_without_entries_leaves_the_others_alone() -> None:
    kv = on_device(paged(LENGTHS, dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=41, tail_width=7)
    selected[3], tail[3] = -1, -1
    q = randn(5, len(LENGTHS), 1, 6, 8, dtype=torch.float32)
    check(run(kv, q, selected, tail), q, kv, selected, tail)
    q[3] = torch.nan
    out = run(kv, q, selected, tail)
    assert (out[3] == 0).all()
    assert out.isfinite().all()


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_nan_of_a_query_is_not_hidden() -> None:
    kv = on_device(paged((63,), dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=41, tail_width=7)
    q = randn(5, 1, 1, 2, 8, dtype=torch.float32)
    q[0, 0, 1, 3] = torch.nan
    out = run(kv, q, selected, tail)
    assert out[0, 0, 0].isfinite().all()
    assert out[0, 0, 1].isnan().all()


def test_large_logits_do_not_overflow() -> None:
    kv = on_device(paged((33,), kv_heads=1, dtype=torch.float32))
    q = randn(5, 1, 1, 1, 8, dtype=torch.float32) * 1e4
    slots = kv.slots(0, torch.arange(33))
    out = run(kv, q, slots[None, None, :30], slots[None, 30:])
    best = int((kv.keys[0][:, 0] @ q[0, 0, 0]).argmax())
    torch.testing.assert_close(out[0, 0, 0].cpu(), kv.values[0][best, 0])


def test_wide_groups() -> None:
    kv = on_device(paged((40,), kv_heads=1, dtype=torch.float32))
    selected, tail, _ = choose(kv, 1, width=33, tail_width=3)
    q = randn(5, 1, 1, 20, 8, dtype=torch.float32)
    check(run(kv, q, selected, tail), q, kv, selected, tail)


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "settled"),
    [(2, 4, 128, False), (1, 7, 64, False), (1, 7, 64, True), (1, 2, 256, False)],
)
def test_the_launches_of_real_calls(kv_heads: int, group: int, dim: int, settled: bool) -> None:
    kv = on_device(paged((300, 700), kv_heads, dim, dtype=torch.bfloat16))
    selected, tail, _ = choose(kv, kv_heads, width=400, tail_width=13)
    q = randn(5, 2, 1, kv_heads * group, dim, dtype=torch.bfloat16) / dim**0.5
    launch = default_launch(dim, torch.bfloat16, 2 * kv_heads, settled)
    assert launch.held == settled
    check(run(kv, q, selected, tail, launch), q, kv, selected, tail)


@pytest.mark.parametrize("table", [LAUNCHES, SETTLED_LAUNCHES])
def test_what_is_fetched_early_is_still_there_when_it_is_read(
    table: dict[tuple[int, int], Launch],
) -> None:
    for (key_bytes, _), launch in table.items():
        entries = 132 * launch.programs_per_sm * launch.tile * launch.early
        assert entries * 2 * key_bytes <= MOST_AHEAD
        assert launch.early & (launch.early - 1) == 0


def test_strided_queries_and_lists() -> None:
    kv = on_device(paged((40, 63), dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=33, tail_width=3)
    everything = randn(5, 2, 1, 8, 8, dtype=torch.float32).to(DEVICE)
    layers = torch.stack([torch.full_like(selected, 2**40), selected], dim=2).to(DEVICE)
    q = everything[:, :, 2:6]
    check(run(kv, q, layers[:, :, 1], tail), q, kv, selected, tail)


def test_addresses_past_two_billion_entries() -> None:
    pages = 2**31 // (16 * 64) + 2
    # virtual memory: only the pages that are written take any
    both = torch.empty(pages, 16, 1, 128, dtype=torch.float16, device=DEVICE)
    k_cache, v_cache = both.chunk(2, dim=-1)
    small = paged((20,), kv_heads=1, dim=64, dtype=torch.float16)
    far = torch.arange(20) + 16 * (pages - 2)
    for cache, entries in ((k_cache, small.keys[0]), (v_cache, small.values[0])):
        cache[far // 16, far % 16] = entries.to(DEVICE)
    q = randn(5, 1, 1, 2, 64, dtype=torch.float16) / 8
    near = small.slots(0, torch.arange(20))
    expected = run(on_device(small), q, near[None, None, :18], near[None, 18:])
    kv = replace(small, k_cache=k_cache, v_cache=v_cache)
    for index in (torch.int32, torch.int64):
        out = run(kv, q, far[None, None, :18].to(index), far[None, 18:].to(index))
        assert torch.equal(out, expected)


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    width=st.integers(1, 50),
    tail_width=st.integers(0, 5),
    programs=st.integers(1, 12),
    small=st.sampled_from([SMALL, HELD]),
    seed=st.integers(0, 9),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_shape(
    lengths: Sequence[int],
    kv_heads: int,
    group: int,
    width: int,
    tail_width: int,
    programs: int,
    small: Launch,
    seed: int,
) -> None:
    kv = on_device(paged(lengths, kv_heads, dim=16, dtype=torch.float32, seed=seed))
    sets = kv_heads if seed % 2 and width >= kv_heads else 1
    selected, tail, _ = choose(kv, sets, width, tail_width)
    q = randn(seed, len(lengths), 1, kv_heads * group, 16, dtype=torch.float32)
    launch = replace(small, programs_per_sm=programs)
    check(run(kv, q, selected, tail, launch), q, kv, selected, tail)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(q=a["q"].double()), "must be bf16"),
        (lambda a: a.update(v_cache=a["v_cache"][:2]), "differ in shape"),
        (lambda a: a.update(q=a["q"][:, :, :5]), "multiple of 2 KV heads"),
        (lambda a: a.update(selected=a["selected"].expand(1, 3, -1)), "3 lists a request"),
        (lambda a: a.update(counts=torch.ones(2, dtype=torch.int64)), "counts of shape"),
        (lambda a: a.update(workspace=poisoned(1, 2, 1, 8)), "the workspace holds"),
    ],
)
def test_what_it_cannot_take(change: Callable[[dict[str, object]], None], message: str) -> None:
    kv = on_device(paged((17,), dtype=torch.float32))
    arguments: dict[str, object] = {
        "q": randn(5, 1, 1, 6, 8, dtype=torch.float32).to(DEVICE),
        "k_cache": kv.k_cache,
        "v_cache": kv.v_cache,
        "selected": torch.full((1, 1, 4), -1, device=DEVICE),
        "tail": torch.full((1, 1), -1, device=DEVICE),
        "scale": SCALE,
    }
    change(arguments)
    with pytest.raises(ValueError, match=message):
        sparse_attention(**arguments)


@pytest.mark.parametrize(
    ("layout", "launch"), [(interleaved, SMALL), (head_major, SMALL), (head_major, HELD)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tail_in_a_pool_of_its_own(
    dtype: torch.dtype, layout: Callable[[Paged], Paged], launch: Launch
) -> None:
    kv = on_device(layout(paged(LENGTHS, dtype=dtype)))
    selected, tail, _ = choose(kv, 2, width=40, tail_width=7)
    q = randn(5, len(LENGTHS), 1, 6, 8, dtype=dtype).to(DEVICE)
    (k_tail, v_tail), own = tail_pool(kv, tail, page_size=5)
    out = sparse_attention(
        q,
        kv.k_cache,
        kv.v_cache,
        selected.to(DEVICE),
        own.to(DEVICE),
        SCALE,
        tail_caches=(k_tail, v_tail),
        workspace=poisoned(len(LENGTHS), 6, 2, 8, launch),
        settled=launch.held,
    )
    check(out, q, kv, selected, tail)


def test_a_tail_of_another_element_stride_is_refused() -> None:
    kv = on_device(paged((17,), dtype=torch.float32))
    selected, tail, _ = choose(kv, 2, width=4, tail_width=3)
    q = randn(5, 1, 1, 6, 8, dtype=torch.float32).to(DEVICE)
    sparse = torch.zeros(2, 16, 2, 16, device=DEVICE)[..., ::2]
    lists = selected.to(DEVICE), tail.to(DEVICE)
    with pytest.raises(ValueError, match="elements 2 apart, those of the caches 1"):
        sparse_attention(q, kv.k_cache, kv.v_cache, *lists, SCALE, tail_caches=(sparse, sparse))
